"""Attaching: namespaces that must agree, bounds, draining, ids, news for watchers."""

from __future__ import annotations

import pytest

from dpu_agent import sessions
from dpu_agent.control.core import SessionNews
from dpu_agent.sessions import SessionTable
from kvlane.errors import (
    CapacityError,
    DrainingError,
    NamespaceMismatchError,
    SessionNotFoundError,
)
from kvlane.keys import root_key
from kvlane.namespace import Namespace

BF16 = Namespace(name="llama", kv_dtype="bfloat16")
FP8 = Namespace(name="llama", kv_dtype="float8_e4m3")


def test_a_namespace_that_differs_is_refused_by_the_field() -> None:
    table = SessionTable(max_sessions=4, id_base=0)
    table.attach("a", BF16)
    with pytest.raises(NamespaceMismatchError) as caught:
        table.attach("b", FP8)
    assert (caught.value.field, len(table)) == ("kv_dtype", 1)


def test_a_descriptor_outlives_its_sessions() -> None:
    table = SessionTable(max_sessions=4, id_base=0)
    table.remove(table.attach("a", BF16).session_id)
    assert table.namespaces() == [(BF16, 0)]
    with pytest.raises(NamespaceMismatchError):
        table.attach("b", FP8)


def test_a_session_that_never_came_to_be_leaves_no_descriptor() -> None:
    table = SessionTable(max_sessions=4, id_base=0)
    table.abandon(table.attach("a", BF16).session_id)
    table.attach("b", FP8)
    assert table.namespaces() == [(FP8, 1)]


def test_an_abandoned_founder_leaves_the_descriptor_to_those_who_share_it() -> None:
    table = SessionTable(max_sessions=4, id_base=0)
    founder, other = table.attach("a", BF16), table.attach("b", BF16)
    table.abandon(founder.session_id)
    assert table.namespaces() == [(BF16, 1)]
    table.remove(other.session_id)
    later = table.attach("c", BF16)
    table.abandon(later.session_id)
    assert table.namespaces() == [(BF16, 0)]


def test_abandoning_twice_does_nothing() -> None:
    table = SessionTable(max_sessions=4, id_base=0)
    session = table.attach("a", BF16)
    table.abandon(session.session_id)
    table.abandon(session.session_id)
    assert len(table) == 0


def test_sessions_are_bounded_and_a_closed_one_makes_room() -> None:
    table = SessionTable(max_sessions=1, id_base=0)
    first = table.attach("a", BF16)
    with pytest.raises(CapacityError, match="max_sessions"):
        table.attach("b", BF16)
    table.remove(first.session_id)
    table.attach("b", BF16)


def names(table: SessionTable) -> set[str]:
    return {namespace.name for namespace, _ in table.namespaces()}


def test_namespaces_with_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_NAMESPACES", 2)
    table = SessionTable(max_sessions=9, id_base=0)
    one = table.attach("a", Namespace(name="one"))
    table.attach("a", Namespace(name="two"))
    with pytest.raises(CapacityError, match="namespaces"):
        table.attach("a", Namespace(name="three"))
    table.attach("a", Namespace(name="two"))
    table.remove(one.session_id)
    table.attach("a", Namespace(name="three"))
    assert names(table) == {"two", "three"}


def test_the_namespace_that_was_unused_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_NAMESPACES", 3)
    table = SessionTable(max_sessions=9, id_base=0)
    kept = table.attach("a", Namespace(name="kept"))
    first, second = (table.attach("a", Namespace(name=name)) for name in ("first", "second"))
    table.remove(second.session_id)
    table.remove(first.session_id)
    fourth = table.attach("a", Namespace(name="fourth"))
    assert names(table) == {"kept", "first", "fourth"}
    table.attach("a", Namespace(name="first"))
    table.remove(kept.session_id)
    table.remove(fourth.session_id)
    table.attach("a", Namespace(name="fifth"))
    assert names(table) == {"first", "fourth", "fifth"}


def test_a_forgotten_name_may_come_back_with_another_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "MAX_NAMESPACES", 1)
    table = SessionTable(max_sessions=9, id_base=0)
    for namespace in (BF16, Namespace(name="other"), FP8):
        table.remove(table.attach("a", namespace).session_id)
    assert table.namespaces() == [(FP8, 0)]
    # What makes it safe: blocks of the one cannot be found by keys of the other.
    assert root_key(BF16, b"") != root_key(FP8, b"")


def test_ids_are_never_used_twice_and_start_at_the_base() -> None:
    table = SessionTable(max_sessions=1, id_base=1 << 40)
    first = table.attach("a", BF16).session_id
    table.remove(first)
    assert first > 1 << 40
    assert table.attach("a", BF16).session_id > first


def test_a_removed_session_is_not_found() -> None:
    table = SessionTable(max_sessions=1, id_base=0)
    session_id = table.attach("a", BF16).session_id
    table.remove(session_id)
    assert session_id not in table
    for look in (table.get, table.remove):
        with pytest.raises(SessionNotFoundError):
            look(session_id)


def test_draining_refuses_new_sessions_and_is_told_once() -> None:
    table = SessionTable(max_sessions=4, id_base=0)
    news: list[SessionNews] = []
    table.attach("a", BF16).watchers.append(lambda state, reason: news.append(state))
    table.drain()
    table.drain()
    assert news == [SessionNews.DRAINING]
    with pytest.raises(DrainingError):
        table.attach("b", BF16)
