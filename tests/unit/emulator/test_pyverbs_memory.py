"""Memory: domains, regions, windows, and memory by address."""

from __future__ import annotations

import ctypes
import errno
import gc
from collections.abc import Callable, Iterator

import pytest

from emulator.pyverbs import devices, dma_util, mem_alloc
from emulator.pyverbs._memory import Buffer
from emulator.pyverbs.base import inc_rkey
from emulator.pyverbs.device import DM, AllocDmAttr, Context
from emulator.pyverbs.dmabuf import DmaBuf
from emulator.pyverbs.fork import fork_init, is_fork_initialized
from emulator.pyverbs.libibverbs_enums import (
    _IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
    _IBV_ADVISE_MR_FLAG_FLUSH,
    ibv_access_flags,
    ibv_fork_status,
    ibv_mw_type,
    ibv_rereg_mr_flags,
)
from emulator.pyverbs.mr import DMMR, MR, MW, DmaBufMR, MWBind, MWBindInfo, mwtype2str
from emulator.pyverbs.pd import PD, ParentDomain, ParentDomainContext, ParentDomainInitAttr
from emulator.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from emulator.pyverbs.wr import SGE
from emulator.pyverbs.xrcd import XRCD, XRCDInitAttr
from kvlane.errors import VerbsError

LOCAL = ibv_access_flags.IBV_ACCESS_LOCAL_WRITE
REMOTE = LOCAL | ibv_access_flags.IBV_ACCESS_REMOTE_WRITE
ACCESS = ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_ACCESS
DOMAIN = ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_PD
TRANSLATION = ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_TRANSLATION


@pytest.fixture
def pd() -> Iterator[PD]:
    with devices(1) as found, Context(name=found[0].name) as context, PD(context) as made:
        yield made


def refused(action: Callable[[], object], code: int, text: str) -> None:
    with pytest.raises(PyverbsRDMAError, match=text) as caught:
        action()
    assert caught.value.error_code == code


def is_registered(region: MR, pd: PD) -> bool:
    """Whether the engine still knows the key."""
    try:
        with pd.ctx.port.nic.engine() as engine:
            engine.regions.change(region.lkey)
    except VerbsError:
        return False
    return True


# Domains


def test_domains_have_numbers_of_their_own(pd: PD) -> None:
    with PD(pd.ctx) as other:
        assert other.handle != pd.handle


def test_a_domain_closes_what_belongs_to_it(pd: PD) -> None:
    region, window = MR(pd, 64, LOCAL), MW(pd, ibv_mw_type.IBV_MW_TYPE_1)
    pd.close()
    assert region.buf == 0
    assert not is_registered(region, pd)
    pd.close()
    region.close()
    window.close()


def test_a_domain_is_shared_by_its_handle(pd: PD) -> None:
    with Context(cmd_fd=pd.ctx.cmd_fd) as other:
        imported = PD(other, handle=pd.handle)
        assert imported.number == pd.number
        imported.unimport()
        assert PD(other, handle=pd.handle).number == pd.number
        refused(lambda: PD(other, handle=pd.handle + 1000), errno.ENOENT, "Failed to import PD")
        pd.close()
        refused(lambda: PD(other, handle=pd.handle), errno.ENOENT, "Failed to import PD")


def test_a_domain_is_made_of_a_context() -> None:
    with pytest.raises(PyverbsUserError, match="Cannot create PD from"):
        PD("kvlane0")


def test_advice_is_taken_if_it_makes_sense(pd: PD) -> None:
    with MR(pd, 64, LOCAL) as region:
        elements = [SGE(region.buf, 64, region.lkey)]
        prefetch, flush = _IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, _IBV_ADVISE_MR_FLAG_FLUSH
        assert pd.advise_mr(prefetch, flush, elements) == 0
        for bad in ((9, 0, elements), (prefetch, 2, elements), (prefetch, 0, [])):
            refused(lambda bad=bad: pd.advise_mr(*bad), errno.EINVAL, "Failed to advise MR")


def test_a_parent_domain_protects_like_the_one_below(pd: PD) -> None:
    context = ParentDomainContext(pd, lambda *_: 0, lambda *_: None, user_data=7)
    assert ParentDomainInitAttr(pd).comp_mask == 0
    attr = ParentDomainInitAttr(pd, context)
    assert attr.comp_mask == 3
    parent = ParentDomain(pd.ctx, attr)
    assert parent.number == pd.number
    region = MR(parent, 64, LOCAL)
    pd.close()
    assert region.buf == 0


# Regions


def test_a_region_allocates_zeroed_memory_at_a_page(pd: PD) -> None:
    with MR(pd, 100, LOCAL) as region:
        assert region.buf % 4096 == 0
        assert region.read(100, 0) == bytes(100)
        assert region.length == 100
        assert hex(region.buf)[2:] not in ("", "0")
        assert str(region.lkey) in str(region)


def test_a_region_is_real_memory(pd: PD) -> None:
    with MR(pd, 100, LOCAL) as region:
        region.write("text", 4, 10)
        region.write(b"\x01\x02\x03", 2, 20)
        assert ctypes.string_at(region.buf + 10, 4) == b"text"
        ctypes.memmove(region.buf, b"outside", 7)
        assert region.read(22, 0) == b"outside" + bytes(3) + b"text" + bytes(6) + b"\x01\x02"


@pytest.mark.parametrize(("offset", "length"), [(0, 101), (100, 1), (-1, 1), (0, -1), (1 << 40, 1)])
def test_access_beyond_the_region_is_refused(pd: PD, offset: int, length: int) -> None:
    with MR(pd, 100, LOCAL) as region:
        with pytest.raises(PyverbsUserError):
            region.read(length, offset)
        with pytest.raises(PyverbsUserError):
            region.write(bytes(200), length, offset)


def test_more_than_the_data_is_not_written(pd: PD) -> None:
    with MR(pd, 100, LOCAL) as region, pytest.raises(PyverbsUserError):
        region.write(b"abc", 4)


def test_a_region_of_given_memory_leaves_it_alone(pd: PD) -> None:
    address = mem_alloc.posix_memalign(256, 64)
    with MR(pd, 256, LOCAL, address=address) as region:
        region.write(b"kept", 4)
        assert region.buf == address
    assert mem_alloc.read(address, 4) == b"kept"
    mem_alloc.free(address)


def test_a_closed_region_opens_nothing(pd: PD) -> None:
    region = MR(pd, 64, LOCAL)
    region.close()
    region.close()
    assert not is_registered(region, pd)
    with pytest.raises(PyverbsUserError, match="isn't allocated"):
        region.read(1, 0)
    with pytest.raises(PyverbsUserError, match="closed"):
        region.rereg(ACCESS, access=LOCAL)


def test_a_forgotten_region_is_deregistered(pd: PD) -> None:
    region = MR(pd, 64, LOCAL)
    key = region.lkey
    del region
    gc.collect()
    with pd.ctx.port.nic.engine() as engine, pytest.raises(VerbsError):
        engine.regions.change(key)


@pytest.mark.parametrize(
    "access",
    [
        ibv_access_flags.IBV_ACCESS_REMOTE_WRITE,
        ibv_access_flags.IBV_ACCESS_REMOTE_ATOMIC,
        1 << 25,
    ],
)
def test_access_that_makes_no_sense_is_refused(pd: PD, access: int) -> None:
    refused(lambda: MR(pd, 64, access), errno.EINVAL, "Failed to register a MR")


@pytest.mark.parametrize(
    "access",
    [ibv_access_flags.IBV_ACCESS_ON_DEMAND, ibv_access_flags.IBV_ACCESS_FLUSH_PERSISTENT],
)
def test_access_that_the_device_lacks_is_not_supported(pd: PD, access: int) -> None:
    refused(lambda: MR(pd, 64, LOCAL | access), errno.EOPNOTSUPP, "Failed to register a MR")


def test_the_whole_address_space_cannot_be_registered(pd: PD) -> None:
    refused(lambda: MR(pd, 0, LOCAL, implicit=True), errno.EOPNOTSUPP, "Failed to register")
    refused(lambda: MR(pd, 1 << 63, LOCAL, address=4096), errno.EINVAL, "Failed to register")


def test_a_region_is_shared_by_its_handle(pd: PD) -> None:
    with MR(pd, 64, REMOTE) as region, Context(cmd_fd=pd.ctx.cmd_fd) as other:
        imported = MR(PD(other, handle=pd.handle), handle=region.handle, address=region.buf)
        assert (imported.lkey, imported.length) == (region.lkey, 64)
        region.write(b"seen", 4)
        assert imported.read(4, 0) == b"seen"
        imported.unimport()
        assert is_registered(region, pd)
        refused(
            lambda: MR(PD(other, handle=pd.handle), handle=region.handle + 1),
            errno.ENOENT,
            "Failed to import MR",
        )


def test_reregistering_moves_a_region(pd: PD) -> None:
    address = mem_alloc.posix_memalign(128)
    with MR(pd, 64, LOCAL) as region, PD(pd.ctx) as other:
        key = region.lkey
        region.rereg(TRANSLATION | DOMAIN | ACCESS, other, address, 128, REMOTE)
        assert (region.lkey, region.buf, region.length) == (key, address, 128)
        pd.close()
        assert is_registered(region, pd)
        other.close()
        assert not is_registered(region, pd)
    mem_alloc.free(address)


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        (0, {}),
        (8, {}),
        (TRANSLATION, {"addr": 0, "length": 64}),
        (DOMAIN, {}),
        (ACCESS, {"access": ibv_access_flags.IBV_ACCESS_REMOTE_WRITE}),
    ],
    ids=["nothing", "unknown", "no address", "no domain", "senseless access"],
)
def test_reregistering_in_vain_changes_nothing(pd: PD, flags: int, options: dict[str, int]) -> None:
    with MR(pd, 64, LOCAL) as region:
        address = region.buf
        refused(lambda: region.rereg(flags, **options), errno.EINVAL, "Failed to rereg MR")
        assert region.buf == address
        assert is_registered(region, pd)


# Device memory and DMA buffers


def test_a_region_of_device_memory_is_reached_by_the_device_alone(pd: PD) -> None:
    access = LOCAL | ibv_access_flags.IBV_ACCESS_ZERO_BASED
    with DM(pd.ctx, AllocDmAttr(64)) as memory:
        region = DMMR(pd, 32, access, memory, 32)
        assert region.buf == 0
        region.write("abcd", 4, 0)
        assert memory.copy_from_dm(0, 4) == b"abcd"
        assert region.read(4, 0) == b"abcd"
        for length, offset in ((33, 32), (68, 0), (4, -4)):
            refused(
                lambda length=length, offset=offset: DMMR(pd, length, access, memory, offset),
                errno.EINVAL,
                "Failed to register a device MR",
            )
        refused(lambda: DMMR(pd, 4, LOCAL, memory, 0), errno.EINVAL, "device MR")
        memory.close()
        assert not is_registered(region, pd)


def test_dma_buffers_and_xrc_domains_are_not_supported(pd: PD) -> None:
    refused(lambda: DmaBuf(4096), errno.EOPNOTSUPP, "Failed to allocate dmabuf")
    refused(lambda: DmaBufMR(pd, 64, LOCAL, 0), errno.EOPNOTSUPP, "Failed to register a dma-buf")
    attr = XRCDInitAttr(3, 0, -1)
    refused(lambda: XRCD(pd.ctx, attr), errno.EOPNOTSUPP, "Failed to allocate XRCD")


# Windows


def test_windows_have_keys_that_open_nothing_yet(pd: PD) -> None:
    with MW(pd, ibv_mw_type.IBV_MW_TYPE_1) as first, MW(pd, 2) as second:
        assert first.rkey != second.rkey
        assert (first.type, second.type) == (1, 2)
        assert "IBV_MW_TYPE_2" in str(second)
    first.close()


def test_a_window_is_freed_whatever_its_key_is_by_then(pd: PD) -> None:
    window = MW(pd, ibv_mw_type.IBV_MW_TYPE_2)
    window.rkey = inc_rkey(window.rkey)
    window.close()
    with pd.ctx.port.nic.engine() as engine:
        assert engine.regions.current_key(window.rkey) == 0


def test_there_are_two_types_of_window(pd: PD) -> None:
    refused(lambda: MW(pd, 3), errno.EINVAL, "Failed to allocate MW")
    assert mwtype2str(3) == "Unknown MW type (3)"


def test_a_binding_keeps_what_it_is_given(pd: PD) -> None:
    with MR(pd, 64, LOCAL) as region:
        info = MWBindInfo(region, region.buf + 8, 16, REMOTE)
        assert (info.addr, info.length, info.mw_access_flags) == (region.buf + 8, 16, REMOTE)
        bind = MWBind(info, 2, wr_id=9)
        assert bind.info is info
        assert str(region.buf + 8) in str(info)
        assert "9" in str(bind)


def test_the_next_key_of_a_window_differs_in_its_lowest_byte() -> None:
    assert inc_rkey(0x1234) == 0x1235
    assert inc_rkey(0x12FF) == 0x1200


# Memory by address


def test_numbers_and_bytes_are_written_where_they_are_read() -> None:
    address = mem_alloc.malloc(64)
    mem_alloc.write(address, "abcdefgh", 8, 8)
    assert mem_alloc.read(address, 3, 9) == b"bcd"
    assert mem_alloc.read32(address, 2) == int.from_bytes(b"abcd", "little")
    assert mem_alloc.read64(address, 1) == int.from_bytes(b"abcdefgh", "little")
    mem_alloc.writebe32(address, 0x01020304, 1)
    mem_alloc.writebe64(address, 0x0102030405060708, 2)
    assert mem_alloc.read(address, 4, 4) == bytes([1, 2, 3, 4])
    dma_util.udma_to_dev_barrier()
    dma_util.mmio_write32_as_be(address, 5)
    dma_util.mmio_write64_as_be(address + 8, 6)
    dma_util.udma_from_dev_barrier()
    assert mem_alloc.read(address, 16) == bytes([0, 0, 0, 5, 1, 2, 3, 4] + [0] * 7 + [6])
    with pytest.raises(ValueError, match="the data has 2"):
        mem_alloc.write(address, b"ab", 3)
    mem_alloc.free(address)


def test_memory_is_aligned_and_zeroed() -> None:
    address = mem_alloc.posix_memalign(100, 4096)
    assert address % 4096 == 0
    assert mem_alloc.read(address, 100) == bytes(100)
    mem_alloc.free(address)
    with pytest.raises(MemoryError, match="Invalid argument"):
        mem_alloc.posix_memalign(100, 3)


def test_memory_is_mapped_advised_and_unmapped() -> None:
    address = mem_alloc.mmap(length=8192)
    mem_alloc.write(address, b"x", 1)
    mem_alloc.madvise(address, 8192)
    assert mem_alloc.read(address, 1) == b"\0"
    refused(lambda: mem_alloc.madvise(address + 1, 1), errno.EINVAL, "Failed to madvise memory")
    mem_alloc.munmap(address, 8192)
    with pytest.raises(MemoryError, match="Failed to munmap"):
        mem_alloc.munmap(address + 1, 1)
    with pytest.raises(MemoryError, match="Failed to mmap"):
        mem_alloc.mmap(length=0)


def test_a_buffer_is_private_to_its_process() -> None:
    """A child that writes to its copy must not write to its parent's registered memory."""
    buffer = Buffer(4096)
    assert buffer.addr % 4096 == 0
    with open("/proc/self/maps", encoding="ascii") as maps:
        line = next(line for line in maps if _covers(line, buffer.addr))
    assert line.split()[1] == "rw-p"


def _covers(line: str, address: int) -> bool:
    start, end = (int(number, 16) for number in line.split()[0].split("-"))
    return start <= address < end


def test_forking_needs_no_preparation() -> None:
    fork_init()
    assert is_fork_initialized() == ibv_fork_status.IBV_FORK_UNNEEDED
