"""GIDs, routes, address handles: their forms, and which of them are refused."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Iterator

import numpy as np
import pytest

from emulator.link.frames import FRAME
from emulator.link.gid import gid_halves
from emulator.pyverbs import devices
from emulator.pyverbs._posting import send_record
from emulator.pyverbs.addr import AH, GID, GRH, AHAttr, GlobalRoute
from emulator.pyverbs.cq import WC
from emulator.pyverbs.device import Context
from emulator.pyverbs.libibverbs_enums import ibv_wc_flags
from emulator.pyverbs.pd import PD
from emulator.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from emulator.pyverbs.wr import SGE, SendWR
from emulator.roce._datagram_kernels import put_network_header
from emulator.roce.attributes import AddressHandle

TEXT = "fd6b:766c:616e:0000:9c41:0000:7f00:0001"
OTHER = "fe80:0000:0000:0000:0000:0000:0000:0002"


@pytest.fixture
def pd() -> Iterator[PD]:
    with devices(1) as found, Context(name=found[0].name) as context, PD(context) as made:
        yield made


def attr_to(gid: str, **options: int) -> AHAttr:
    return AHAttr(is_global=1, gr=GlobalRoute(GID(gid), **options))


def test_a_gid_is_read_and_written_in_eight_groups() -> None:
    gid = GID(TEXT)
    assert gid.raw.hex() == TEXT.replace(":", "")
    gid.gid = OTHER
    assert str(gid) == gid.gid == OTHER
    assert GID().gid == ":".join(["0000"] * 8)


@pytest.mark.parametrize("text", ["", "fe80::1", TEXT[:-1], TEXT + ":0000", TEXT[:-1] + "x"])
def test_any_other_form_of_a_gid_is_the_callers_mistake(text: str) -> None:
    with pytest.raises(PyverbsUserError, match="Invalid GID value"):
        GID(text)


def test_headers_and_routes_keep_what_they_are_given() -> None:
    header = GRH(GID(TEXT), GID(OTHER), 0x6000_0001, 100, 0x1B, 9)
    assert (header.sgid, header.dgid, header.paylen, header.hop_limit) == (TEXT, OTHER, 100, 9)
    header.dgid = TEXT
    assert header.dgid == TEXT
    assert TEXT in str(header)
    route = GlobalRoute(GID(OTHER), 0xFFFFF, 0, 64, 0x20)
    assert (route.dgid, route.flow_label, route.traffic_class) == (OTHER, 0xFFFFF, 0x20)
    assert OTHER in str(route)


def test_a_route_is_there_only_for_a_global_address() -> None:
    local = AHAttr(dlid=7, port_num=1)
    assert local.dlid == 7
    assert local.dgid is None
    assert local.hop_limit is None
    assert "dgid" not in str(local)
    with pytest.raises(PyverbsUserError, match="gr parameter is None"):
        AHAttr(is_global=1)


def test_a_route_is_copied_into_the_address() -> None:
    route = GlobalRoute(GID(TEXT), 5, 0, 3, 8)
    attr = AHAttr(is_global=1, gr=route)
    route.dgid = OTHER
    assert attr.dgid == TEXT
    attr.dgid = OTHER
    attr.flow_label = 6
    assert (attr.dgid, attr.flow_label, attr.traffic_class) == (OTHER, 6, 8)
    assert OTHER in str(attr)


def test_a_path_survives_the_engine_and_back(pd: PD) -> None:
    attr = attr_to(TEXT, flow_label=77, hop_limit=9, traffic_class=0x60)
    attr.sl = 3
    path = attr.address_handle(pd.ctx.port)
    again = AHAttr.of_address_handle(path)
    assert str(again) == str(attr)
    assert isinstance(path, AddressHandle)


def test_all_that_a_datagram_can_say_of_its_way_is_in_its_record(pd: PD) -> None:
    handle = AH(pd, attr=attr_to(OTHER, traffic_class=4, flow_label=0x12345))
    wr = SendWR(num_sge=1, sg=[SGE(1, 8, 3)])
    wr.set_wr_ud(handle, 5, 6)
    record = send_record(wr, pd.ctx.port)
    assert (record.ud_qpn, record.ud_qkey) == (5, 6)
    assert (record.ud_traffic_class, record.ud_flow_label) == (4, 0x12345)


def test_a_handle_knows_the_way(pd: PD) -> None:
    handle = AH(pd, attr=attr_to(OTHER, traffic_class=4))
    assert handle.path.dgid == GID(OTHER).raw
    assert handle.path.traffic_class == 4
    handle.close()
    handle.close()


@pytest.mark.parametrize(
    ("attr", "reason"),
    [
        (AHAttr(is_global=0), "must be global"),
        (AHAttr(is_global=1, port_num=2, gr=GlobalRoute(GID(TEXT))), "no port 2"),
        (attr_to(TEXT, sgid_index=1), "no GID at index 1"),
    ],
)
def test_a_path_that_cannot_be_is_refused(pd: PD, attr: AHAttr, reason: str) -> None:
    with pytest.raises(PyverbsRDMAError, match=f"Failed to create AH.*{reason}") as caught:
        AH(pd, attr=attr)
    assert caught.value.error_code == errno.EINVAL


def received_header(source: bytes, destination: bytes, tos: int, flow_label: int) -> bytes:
    """The first 40 bytes of a datagram's receive buffer, as the engine writes them."""
    frame = np.zeros(1, FRAME).view(np.recarray)[0]
    frame.src_hi, frame.src_lo = gid_halves(source)
    frame.dst_hi, frame.dst_lo = gid_halves(destination)
    frame.tos, frame.flow_label, frame.length = tos, flow_label, 100
    out = ctypes.create_string_buffer(40)
    put_network_header(frame, ctypes.addressof(out))
    return out.raw


@pytest.mark.parametrize(
    "source",
    [GID(TEXT).raw, bytes(10) + b"\xff\xff" + bytes([192, 0, 2, 7])],
    ids=["IPv6", "IPv4"],
)
def test_a_datagram_is_answered_by_its_header(
    pd: PD, source: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the GID that it was sent to, which is not the first of the port's."""
    destination = source[:12] + bytes([192, 0, 2, 9])
    port = pd.ctx.port
    monkeypatch.setattr(port, "gids", [*port.gids, destination])
    header = ctypes.create_string_buffer(received_header(source, destination, 0x28, 0x12345))
    wc = WC(wc_flags=int(ibv_wc_flags.IBV_WC_GRH))
    handle = AH(pd, wc=wc, grh=ctypes.addressof(header), port_num=1)
    assert (handle.path.dgid, handle.path.sgid_index) == (source, 1)
    assert handle.path.traffic_class == 0x28


def test_a_datagram_without_header_cannot_be_answered(pd: PD) -> None:
    with pytest.raises(PyverbsRDMAError, match="Failed to create AH"):
        AH(pd, wc=WC(), grh=0, port_num=1)
