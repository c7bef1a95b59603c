"""An errno of libibverbs becomes an error that says what failed, why, and what to do."""

from __future__ import annotations

import errno

import pytest

from kvlane.errors import QueueFullError, VerbsError
from kvlane.hardware.failures import (
    CONNECTING,
    CREATING,
    DESTROYING,
    OPENING,
    POSTING,
    REGISTERING,
    WORKING,
    Call,
    errno_of,
    failing,
)
from tests.support.fake_rdma import FakePyverbsError, fake_binding


@pytest.mark.parametrize(
    ("call", "code", "advice"),
    [
        (OPENING, errno.EACCES, "/dev/infiniband/uverbs"),
        (CREATING, errno.ENOMEM, "lower the depth"),
        (REGISTERING, errno.ENOMEM, "LimitMEMLOCK=infinity"),
        (REGISTERING, errno.EOPNOTSUPP, "does not offer this access"),
        (CONNECTING, errno.ETIMEDOUT, "no neighbour answers"),
        (CONNECTING, errno.EINVAL, "refuses the peer's parameters"),
        (DESTROYING, errno.EBUSY, "close that first"),
        (WORKING, errno.EIO, "device is gone"),
        (REGISTERING, errno.ENODEV, "device is gone"),
    ],
)
def test_the_advice_is_that_of_the_call(call: Call, code: int, advice: str) -> None:
    with (
        pytest.raises(VerbsError, match=rf"trying failed \(what pyverbs says\); .*{advice}"),
        failing(fake_binding(), "trying", call),
    ):
        raise FakePyverbsError("what pyverbs says", code)


def test_only_a_full_queue_is_a_full_queue() -> None:
    for call, is_full in ((POSTING, True), (CREATING, False)):
        with pytest.raises(VerbsError) as caught, failing(fake_binding(), "trying", call):
            raise FakePyverbsError("no memory", errno.ENOMEM)
        assert isinstance(caught.value, QueueFullError) == is_full


def test_without_an_errno_there_is_no_advice() -> None:
    with (
        pytest.raises(VerbsError, match=r"trying failed \(no reason\)$") as caught,
        failing(fake_binding(), "trying", OPENING),
    ):
        raise FakePyverbsError("no reason")
    assert isinstance(caught.value.__cause__, FakePyverbsError)


def test_other_errors_are_left_alone() -> None:
    with pytest.raises(KeyError), failing(fake_binding(), "trying", OPENING):
        raise KeyError("a bug of ours")


@pytest.mark.parametrize(("told", "code"), [(-1, 0), (-22, 22), (22, 22), (0, 0)])
def test_an_errno_may_be_negated_or_missing(told: int, code: int) -> None:
    assert errno_of(FakePyverbsError("", told)) == code
    assert errno_of(ValueError()) == 0
