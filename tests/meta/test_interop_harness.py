"""Held: the harness that boots the guest judges and counts as it says, without booting one."""

from __future__ import annotations

import gzip
import lzma
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.guest.initramfs import load_order
from tests.interop.guest.packages import GuestError, elf_of
from tests.interop.remote import Remote, RemoteError, accept
from tests.interop.report import CannotRunError, MismatchError, Outcome, Report, require

ELF = b"\x7fELF" + bytes(range(256)) * 40


def bzimage(payload: bytes, setup_sectors: int = 4) -> bytes:
    """An image with the header fields that the boot protocol gives."""
    header = bytearray((setup_sectors + 1) * 512)
    header[0x1F1] = 0 if setup_sectors == 4 else setup_sectors
    struct.pack_into("<II", header, 0x248, 32, len(payload))
    return bytes(header) + bytes(32) + payload + b"trailer"


@pytest.mark.parametrize("pack", [lzma.compress, gzip.compress], ids=["xz", "gzip"])
@pytest.mark.parametrize("setup_sectors", [4, 27])
def test_the_kernel_is_taken_out_of_its_image(
    pack: Callable[[bytes], bytes], setup_sectors: int
) -> None:
    assert elf_of(bzimage(pack(ELF), setup_sectors)) == ELF


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [(b"\x28\xb5\x2f\xfd rest", "unknown here"), (lzma.compress(b"text"), "no ELF file")],
    ids=["zstd", "something else"],
)
def test_a_kernel_that_cannot_be_taken_out_is_refused(payload: bytes, complaint: str) -> None:
    with pytest.raises(GuestError, match=complaint):
        elf_of(bzimage(payload))


DEPENDENCIES = """\
kernel/virtio.ko:
kernel/ring-buffer.ko: kernel/virtio.ko
kernel/virtio_pci.ko: kernel/ring-buffer.ko kernel/virtio.ko
kernel/9p.ko: kernel/fscache.ko kernel/netfs.ko
kernel/netfs.ko:
kernel/fscache.ko: kernel/netfs.ko
"""


def test_modules_come_after_what_they_need_and_once() -> None:
    order = load_order(DEPENDENCIES, ("virtio_pci", "9p", "virtio-pci"))
    assert order == [
        "kernel/virtio.ko",
        "kernel/ring-buffer.ko",
        "kernel/virtio_pci.ko",
        "kernel/netfs.ko",
        "kernel/fscache.ko",
        "kernel/9p.ko",
    ]


def test_a_module_that_the_kernel_lacks_is_named() -> None:
    with pytest.raises(GuestError, match="no module overlay"):
        load_order(DEPENDENCIES, ("overlay",))


def test_every_cell_is_one_line_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    with report.cell("SEND", "ipv4", "a to b", 7):
        pass
    with report.cell("SEND", "ipv4", "b to a", 7):
        require(1 == 2, "one is not two")
    with report.cell("READ", "ipv4", "a to b"):
        raise RemoteError("line one\nthe last line")
    with report.cell("flush", "ipv4", "a to b"):
        raise CannotRunError("the peer has none")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[0].endswith("7  passed")
    assert lines[1].endswith("failed  one is not two")
    assert lines[2].endswith("failed  the last line")
    assert lines[3].endswith("skipped  the peer has none")
    assert report.summary() == "interop: 1 passed, 2 failed, 1 skipped"
    assert [record["outcome"] for record in report.as_records()] == [
        Outcome.PASSED,
        Outcome.FAILED,
        Outcome.FAILED,
        Outcome.SKIPPED,
    ]


def test_a_fault_of_the_harness_itself_is_no_result() -> None:
    report = Report()
    with pytest.raises(ZeroDivisionError), report.cell("SEND", "ipv4", "a to b"):
        raise ZeroDivisionError
    assert report.cells == []


def test_a_requirement_says_what_it_missed() -> None:
    require([1], "there is one")
    with pytest.raises(MismatchError, match="nothing there"):
        require([], "nothing there")


def _answering(*lines: str) -> Remote:
    """An endpoint that answers every request with the next of these lines, then ends."""
    mine, other = socket.socketpair()

    def answer() -> None:
        with other, other.makefile("rw") as stream:
            for line in lines:
                stream.readline()
                stream.write(line + "\n")
                stream.flush()
            stream.readline()

    threading.Thread(target=answer, daemon=True).start()
    return Remote("rxe", mine)


def test_an_endpoints_answer_its_error_and_its_end() -> None:
    remote = _answering('{"result": [1, 2]}', '{"error": "Traceback\\nOSError: no"}')
    assert remote.call("completions", qp=1) == [1, 2]
    with pytest.raises(RemoteError, match="rxe: connect: Traceback\nOSError: no"):
        remote.call("connect")
    with pytest.raises(RemoteError, match="ended at close"):
        remote.call("close")
    remote.close()


def test_an_endpoint_that_will_not_come_is_not_waited_for() -> None:
    def died() -> None:
        raise GuestError("the guest has ended")

    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(GuestError, match="has ended"),
    ):
        accept(listener, "rxe", 60.0, died)


def test_programs_of_the_guest_need_nothing_but_pyverbs() -> None:
    """Debian's interpreter runs them, which has none of the project's packages."""
    text = (Path(__file__).parents[1] / "interop/endpoint.py").read_text()
    for package in ("kvlane", "emulator", "host_driver", "dpu_agent", "numpy"):
        assert f"import {package}" not in text
        assert f"from {package}" not in text
