"""Text forms of numbers, errors with their codes, and objects that close each other."""

from __future__ import annotations

import errno
from typing import ClassVar

import pytest

from emulator.pyverbs import utils
from emulator.pyverbs._absent import AbsentAttributes, AbsentObject
from emulator.pyverbs.base import Dependents, PyverbsCM, PyverbsRDMAErrno, verbs_errors
from emulator.pyverbs.flow import Flow
from emulator.pyverbs.providers.efa import efa_enums
from emulator.pyverbs.providers.efa.efadv import EfaCQ
from emulator.pyverbs.providers.mlx5 import mlx5_enums
from emulator.pyverbs.providers.mlx5.mlx5dv import Mlx5Context, Mlx5DVContextAttr
from emulator.pyverbs.providers.mlx5.mlx5dv_objects import Mlx5DvObj
from emulator.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError, PyverbsUserError
from emulator.pyverbs.spec import EthSpec
from emulator.pyverbs.wq import WQ
from kvlane.errors import CapacityError, DrainingError, QueueFullError, VerbsError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (utils.qp_type_to_str(2), "RC"),
        (utils.qp_type_to_str(0xFF), "Driver QP"),
        (utils.qp_type_to_str(5), "Unknown (5)"),
        (utils.qp_state_to_str(3), "RTS"),
        (utils.qp_state_to_str(9), "Unknown (9)"),
        (utils.mtu_to_str(5), 4096),
        (utils.mtu_to_str(0), 0),
        (utils.mtu_to_str(6), 0),
        (utils.access_flags_to_str(5), "Local write Remote read "),
        (utils.access_flags_to_str(0), ""),
        (utils.mig_state_to_str(2), "Armed"),
        (utils.rereg_error_to_str(-4), "IBV_REREG_MR_ERR_CMD"),
        (utils.rereg_error_to_str(-9), "Unknown error (-9)"),
        (utils.gid_str(0x0201, 0x0403), "0102:0000:0000:0000:0304:0000:0000:0000"),
        (utils.be64toh(0x0102030405060708), 0x0807060504030201),
    ],
)
def test_numbers_as_text(text: object, expected: object) -> None:
    assert text == expected


def test_an_error_tells_its_code_and_what_it_means() -> None:
    error = PyverbsRDMAErrno("Failed to do it", errno.EBUSY)
    assert isinstance(error, PyverbsRDMAError)
    assert error.error_code == errno.EBUSY
    assert str(error) == "Failed to do it. Errno: 16, Device or resource busy"
    assert PyverbsRDMAError("no code").error_code == -1
    assert str(PyverbsRDMAError("no code")) == "no code"
    assert "Invalid argument" in str(PyverbsRDMAError("negative", -errno.EINVAL))
    assert issubclass(PyverbsUserError, PyverbsError)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (VerbsError("x"), errno.EINVAL),
        (QueueFullError("x"), errno.ENOMEM),
        (CapacityError("x"), errno.ENOMEM),
    ],
)
def test_errors_of_the_engine_get_a_code(error: Exception, code: int) -> None:
    with pytest.raises(PyverbsRDMAError, match="Failed") as caught, verbs_errors("Failed"):
        raise error
    assert caught.value.error_code == code
    assert caught.value.__cause__ is error


def test_errors_of_others_are_left_alone() -> None:
    with pytest.raises(DrainingError), verbs_errors("Failed"):
        raise DrainingError("x")


class Part(PyverbsCM):
    """Notes its closing."""

    _kind: ClassVar[str] = "part"

    def __init__(self, name: str, log: list[str]) -> None:
        super().__init__()
        self.name = name
        self._log: list[str] | None = log

    def close(self) -> None:
        if self._log is not None:
            self._log.append(self.name)
            self._log = None


class Whole(Part):
    """Of another kind."""

    _kind: ClassVar[str] = "whole"


def test_dependents_are_closed_in_the_order_of_their_kinds() -> None:
    log: list[str] = []
    dependents = Dependents("part", "whole")
    whole, part = Whole("whole", log), Part("part", log)
    dependents.add(whole)
    dependents.add(part)
    dependents.close()
    dependents.close()
    assert log == ["part", "whole"]


def test_dependents_are_not_kept_alive_and_can_leave() -> None:
    log: list[str] = []
    dependents = Dependents("part")
    dependents.add(Part("forgotten", log))
    assert log == ["forgotten"]
    part = Part("left", log)
    dependents.add(part)
    assert dependents.of_kind("part") == [part]
    dependents.remove(part)
    dependents.close()
    assert log == ["forgotten"]


def test_a_block_closes_its_object() -> None:
    log: list[str] = []
    with Part("block", log):
        assert log == []
    assert log == ["block"]


def test_what_only_vendors_have_cannot_be_made() -> None:
    for cls in (Mlx5Context, Mlx5DvObj, EfaCQ, WQ, Flow):
        assert issubclass(cls, AbsentObject)
        with pytest.raises(PyverbsRDMAError, match=cls.__name__) as caught:
            cls(Mlx5DVContextAttr(), "kvlane0", option=1)
        assert caught.value.error_code == errno.EOPNOTSUPP
    assert isinstance(EthSpec(ether_type=0x800), AbsentAttributes)


def test_numbers_of_vendors_are_those_of_their_headers() -> None:
    assert mlx5_enums.MLX5_SEND_WQE_BB == 1 << mlx5_enums.MLX5_SEND_WQE_SHIFT
    assert mlx5_enums.mlx5dv_dc_type.MLX5DV_DCTYPE_DCI == 2
    assert efa_enums.EFADV_QP_DRIVER_TYPE_SRD == 0
