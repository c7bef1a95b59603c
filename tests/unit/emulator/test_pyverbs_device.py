"""Devices and contexts: what they report, whom they share with, and how they refuse."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator

import pytest

from emulator.pyverbs import _device_names as names
from emulator.pyverbs import devices
from emulator.pyverbs.device import (
    DM,
    AllocDmAttr,
    Context,
    DeviceAttr,
    GIDEntry,
    PortAttr,
    get_device_list,
    rdma_get_devices,
)
from emulator.pyverbs.libibverbs_enums import (
    IBV_LINK_LAYER_ETHERNET,
    ibv_atomic_cap,
    ibv_device_cap_flags,
    ibv_event_type,
    ibv_gid_type,
    ibv_gid_type_sysfs,
    ibv_node_type,
    ibv_port_state,
)
from emulator.pyverbs.pd import PD
from emulator.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError, PyverbsUserError
from emulator.roce.engine import AsyncEvent, EngineLimits
from emulator.roce.state import MAX_SGE
from kvlane.errors import CapacityError
from kvlane.verbs.enums import EventType


@pytest.fixture
def context() -> Iterator[Context]:
    with devices(1, mtu_bytes=1024) as found, Context(name=found[0].name) as opened:
        yield opened


def refused(action: Callable[[], object], code: int, text: str) -> None:
    with pytest.raises(PyverbsRDMAError, match=text) as caught:
        action()
    assert caught.value.error_code == code


# The list


def test_the_list_names_devices_as_bytes() -> None:
    with devices(2, name="nic"):
        listed = get_device_list()
        assert [device.name for device in listed] == [b"nic0", b"nic1"]
        assert [device.index for device in listed] == [0, 1]
        assert {device.node_type for device in listed} == {ibv_node_type.IBV_NODE_CA}
        assert [str(device) for device in rdma_get_devices()] == [str(each) for each in listed]


def test_there_may_be_no_device() -> None:
    with devices(0):
        assert get_device_list() == []


def test_the_guid_is_the_same_in_all_its_forms(context: Context) -> None:
    (device,) = get_device_list()
    assert names.guid_to_hex(device.guid) == "2006b766c000001"
    node_guid = context.query_device().node_guid
    assert names.guid_format(node_guid) == "0200:6b76:6c00:0001"


# Opening


def test_a_name_is_needed_and_must_be_listed() -> None:
    with devices(1):
        with pytest.raises(PyverbsUserError, match="Device name must be provided"):
            Context()
        refused(lambda: Context(name="mlx5_0"), -1, "Failed to find device mlx5_0")


def test_a_providers_attributes_are_not_supported() -> None:
    with devices(1) as found:
        name = found[0].name
        refused(lambda: Context(name=name, attr=object()), errno.EOPNOTSUPP, "provider")


def test_a_context_is_shared_by_a_duplicate_of_its_descriptor(context: Context) -> None:
    duplicate = os.dup(context.cmd_fd)
    with Context(cmd_fd=duplicate) as imported:
        assert imported.name == context.name
        assert imported.query_gid(1, 0).gid == context.query_gid(1, 0).gid
    os.close(duplicate)
    assert context.query_port(1).state == ibv_port_state.IBV_PORT_ACTIVE


def test_a_foreign_descriptor_shares_nothing(context: Context) -> None:
    refused(lambda: Context(cmd_fd=0), errno.EINVAL, "Failed to import device")


def test_closing_twice_and_using_it_afterwards(context: Context) -> None:
    context.close()
    context.close()
    for query in (
        context.query_device,
        lambda: context.query_port(1),
        lambda: context.query_gid(1, 0),
        context.get_async_event,
    ):
        refused(query, errno.EBADF, "context is closed")


def test_closing_a_context_closes_what_was_made_of_it(context: Context) -> None:
    pd = PD(context)
    context.close()
    with pytest.raises(PyverbsError):
        DM(context, AllocDmAttr(0))
    pd.close()


# What is reported


def test_the_limits_are_those_of_the_engine(context: Context) -> None:
    """A program may ask for all of it, and not for more."""
    limits = context.query_device()
    assert limits.max_sge == MAX_SGE
    assert limits.max_cq == EngineLimits().max_cqs
    with context.port.nic.engine() as engine:
        made = [engine.cqs.create(1) for _ in range(limits.max_cq)]
        with pytest.raises(CapacityError):
            engine.cqs.create(1)
        for index in made:
            engine.cqs.destroy(index)


def test_the_device_can_do_what_it_says(context: Context) -> None:
    attr = context.query_device()
    assert attr.atomic_caps == ibv_atomic_cap.IBV_ATOMIC_HCA
    assert attr.phys_port_cnt == 1
    flags = ibv_device_cap_flags(attr.device_cap_flags)
    assert flags & ibv_device_cap_flags.IBV_DEVICE_MEM_WINDOW_TYPE_2B
    assert not flags & ibv_device_cap_flags.IBV_DEVICE_MEM_WINDOW_TYPE_2A
    assert not flags & ibv_device_cap_flags.IBV_DEVICE_XRC


def test_extended_attributes_name_nothing_that_is_not_there(context: Context) -> None:
    extended = context.query_device_ex()
    assert extended.orig_attr == context.query_device()
    assert extended.odp_caps.general_caps == 0
    assert extended.raw_packet_caps == 0
    assert extended.rss_caps.supported_qpts == 0
    assert extended.tso_caps.max_tso == 0
    assert extended.phys_port_cnt_ex == 1
    # FLUSH for global visibility and ATOMIC WRITE, as the kernel counts them; no persistence.
    assert extended.device_cap_flags_ex >> 32 == 1 << 6 | 1 << 8
    assert "ODP General caps" in str(extended.odp_caps)


def test_the_port_is_active_ethernet_with_the_configured_mtu(context: Context) -> None:
    port = context.query_port(1)
    assert port.state == ibv_port_state.IBV_PORT_ACTIVE
    assert port.link_layer == IBV_LINK_LAYER_ETHERNET
    assert names.translate_mtu(port.active_mtu) == "1024 (3)"
    assert port.lid == 0


def test_violations_are_counted_by_the_port(context: Context) -> None:
    with context.port.nic.engine() as engine:
        engine._counters["rx_bad_pkey"] = 5
        engine._counters["rx_bad_qkey"] = 6
    port = context.query_port(1)
    assert (port.bad_pkey_cntr, port.qkey_viol_cntr) == (5, 6)


def test_everything_can_be_printed(context: Context) -> None:
    device_text = str(context.query_device())
    assert "IBV_DEVICE_MEM_WINDOW" in device_text
    assert len(device_text.splitlines()) > len(DeviceAttr.__dataclass_fields__)
    port_text = str(context.query_port(1))
    for word in ("Active (4)", "Ethernet", "1024 (3)", "Link up (5)", "4X (2)"):
        assert word in port_text
    assert "RoCEv2" in str(context.query_gid_ex(1, 0))


@pytest.mark.parametrize("port_num", [0, 2, 255])
def test_there_is_one_port(context: Context, port_num: int) -> None:
    refused(
        lambda: context.query_port(port_num),
        errno.EINVAL,
        f"Failed to query port {port_num}.*Invalid argument",
    )


# Partition keys


def test_the_default_partition_is_the_only_one(context: Context) -> None:
    assert context.query_pkey(1, 0) == 0xFFFF
    assert context.get_pkey_index(1, 0xFFFF) == 0
    refused(lambda: context.query_pkey(1, 1), -1, "Failed to query pkey 1")
    refused(lambda: context.get_pkey_index(1, 0x1234), -1, "Failed to get pkey index")


# GIDs


def test_the_table_has_one_gid_and_room_for_more(context: Context) -> None:
    length = context.query_port(1).gid_tbl_len
    assert length > 1
    gid = context.query_gid(1, 0).gid
    assert gid[-19:] != "0000:0000:0000:0000"
    for index in range(1, length):
        assert set(context.query_gid(1, index).gid) == {"0", ":"}
    refused(lambda: context.query_gid(1, length), -1, "Failed to query gid")
    refused(lambda: context.query_gid(2, 0), errno.EINVAL, "Failed to query gid 0 of port 2")


def test_the_gid_is_told_alike_in_every_way(context: Context) -> None:
    gid = context.query_gid(1, 0).gid
    (entry,) = context.query_gid_table(16)
    assert entry.gid_str() == gid
    assert entry == context.query_gid_ex(1, 0)
    assert (entry.gid_index, entry.port_num) == (0, 1)
    assert entry.gid_type == ibv_gid_type.IBV_GID_TYPE_ROCE_V2
    assert context.query_gid_type(1, 0) == ibv_gid_type_sysfs.IBV_GID_TYPE_SYSFS_ROCE_V2


def test_the_table_is_refused_to_a_buffer_that_is_too_small(context: Context) -> None:
    refused(lambda: context.query_gid_table(0), -errno.EINVAL, "Failed to query gid tables")
    assert len(context.query_gid_table(1)) == 1


def test_an_empty_entry_is_no_data_and_one_outside_is_invalid(context: Context) -> None:
    refused(lambda: context.query_gid_ex(1, 1), errno.ENODATA, "in index 1")
    refused(lambda: context.query_gid_ex(1, 16), errno.EINVAL, "in index 16")
    refused(lambda: context.query_gid_ex(2, 0), errno.EINVAL, "port 2")
    refused(lambda: context.query_gid_ex(1, 0, flags=1), errno.EINVAL, "in index 0")
    refused(lambda: context.query_gid_type(1, 16), errno.EINVAL, "gid index 16")


def test_an_entry_can_be_made_by_hand() -> None:
    entry = GIDEntry(0x0102, 0x0304, 1, 1, int(ibv_gid_type.IBV_GID_TYPE_ROCE_V1))
    assert entry.gid_str() == "0201:0000:0000:0000:0403:0000:0000:0000"
    assert "RoCEv1" in str(entry)


# Time and events


def test_the_clock_of_the_device_goes_on(context: Context) -> None:
    first, second = context.query_rt_values_ex(), context.query_rt_values_ex()
    assert first <= second
    assert 0 <= first[1] < 1_000_000_000
    with pytest.raises(PyverbsRDMAError, match="comp_mask"):
        context.query_rt_values_ex(2)


def test_asynchronous_events_are_fetched_in_order(context: Context) -> None:
    for event in (EventType.COMM_EST, EventType.SQ_DRAINED):
        context.async_events.put(AsyncEvent(event, 1))
    fetched = [context.get_async_event() for _ in range(2)]
    assert [event.event_type for event in fetched] == [
        ibv_event_type.IBV_EVENT_COMM_EST,
        ibv_event_type.IBV_EVENT_SQ_DRAINED,
    ]
    assert "IBV_EVENT_COMM_EST" in str(fetched[0])
    fetched[0].ack()


def test_a_program_may_poll_for_events(context: Context) -> None:
    os.set_blocking(context.async_events.fd, False)
    refused(context.get_async_event, errno.EAGAIN, "Failed to get async event")


# Names of numbers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (names.translate_gid_type(7), "Unknown gid_type (7)"),
        (names.translate_transport_type(-1), "Unknown"),
        (names.translate_node_type(4), "RNIC"),
        (names.translate_event_type(77), "Unknown event_type (77)"),
        (names.translate_event_type(3), "IBV_EVENT_QP_ACCESS_ERR"),
        (names.port_state_to_str(9), "Invalid state (9)"),
        (names.translate_mtu(6), "Invalid MTU (6)"),
        (names.translate_link_layer(3), "Invalid link layer (3)"),
        (names.phys_state_to_str(0), "Invalid physical state"),
        (names.width_to_str(3), "Invalid width"),
        (names.speed_to_str(3, 0), "Invalid speed"),
        (names.speed_to_str(3, 256), "200.0 Gbps (256)"),
    ],
)
def test_numbers_without_a_name_are_told_as_such(text: str, expected: str) -> None:
    assert expected in text


def test_a_port_of_another_kind_can_be_described() -> None:
    port = PortAttr(active_mtu=5, bad_pkey_cntr=0, qkey_viol_cntr=0, state=1, link_layer=1)
    assert "Down (1)" in str(port)
    assert "InfiniBand" in str(port)


# Device memory


def test_device_memory_keeps_what_is_written(context: Context) -> None:
    rng = random.Random(1)
    data = rng.randbytes(4096)
    with DM(context, AllocDmAttr(4096)) as memory:
        memory.copy_to_dm(0, data, 4096)
        memory.copy_to_dm(8, b"\xff" * 8, 4)
        assert memory.copy_from_dm(0, 4096) == data[:8] + b"\xff" * 4 + data[12:]


@pytest.mark.parametrize(("offset", "length"), [(1, 4), (4, 3), (96, 8), (0, 104), (-4, 4)])
def test_device_memory_is_reached_in_whole_words_inside(
    context: Context, offset: int, length: int
) -> None:
    with DM(context, AllocDmAttr(100)) as memory:
        refused(lambda: memory.copy_from_dm(offset, length), errno.EINVAL, "copy from dm")
        refused(lambda: memory.copy_to_dm(offset, bytes(200), length), errno.EINVAL, "copy to dm")


def test_all_device_memory_together_is_limited(context: Context) -> None:
    most = context.query_device_ex().max_dm_size
    text = "Failed to allocate device memory of size .* Max available size"
    refused(lambda: DM(context, AllocDmAttr(most + 1)), errno.ENOMEM, text)
    first = DM(context, AllocDmAttr(most // 2 + 1))
    refused(lambda: DM(context, AllocDmAttr(most // 2)), errno.ENOMEM, text)
    first.close()
    DM(context, AllocDmAttr(most)).close()


def test_attributes_of_device_memory_are_checked(context: Context) -> None:
    for attr in (AllocDmAttr(8, comp_mask=1), AllocDmAttr(8, log_align_req=20), AllocDmAttr(0)):
        refused(lambda attr=attr: DM(context, attr), errno.EINVAL, "Failed to allocate")


def test_device_memory_is_shared_by_its_handle(context: Context) -> None:
    with DM(context, AllocDmAttr(64)) as memory, Context(cmd_fd=context.cmd_fd) as other:
        imported = DM(other, handle=memory.handle)
        memory.copy_to_dm(0, b"shared!!", 8)
        assert imported.copy_from_dm(0, 8) == b"shared!!"
        imported.unimport()
        assert memory.copy_from_dm(0, 8) == b"shared!!"
        refused(lambda: DM(other, handle=memory.handle + 1), errno.ENOENT, "import DM")
    refused(lambda: DM(context, handle=memory.handle), errno.ENOENT, "import DM")
