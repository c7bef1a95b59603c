"""Who is attached: sessions, the namespaces that they attach to, and who watches them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dpu_agent.control.core import SessionNews
from kvlane.errors import CapacityError, DrainingError, SessionNotFoundError
from kvlane.namespace import Namespace

MAX_NAMESPACES = 4096
"""Descriptors the agent knows at once; they outlive their sessions, so they need a bound."""

Watcher = Callable[[SessionNews, str], None]
"""Told of each piece of news and its reason; must not block or raise."""


@dataclass(slots=True)
class Session:
    """One attached host process."""

    session_id: int
    client_name: str
    namespace: Namespace
    founder: bool
    """The first that attached to its namespace."""
    watchers: list[Watcher] = field(default_factory=list)

    def tell(self, news: SessionNews, reason: str) -> None:
        """Pass news to all watchers."""
        for watcher in list(self.watchers):
            watcher(news, reason)


class SessionTable:
    """All sessions and namespaces; the control plane's state, without any input or output.

    A namespace's descriptor stays after its last session has left, because blocks stored
    under it stay as well: what attaches later must still be the same. Only a new name beyond
    ``MAX_NAMESPACES`` makes the table forget the one that has been without sessions longest.
    That is safe: the descriptor is hashed into the keys, so another one under the forgotten
    name does not find the old one's blocks, and the same one does.
    """

    def __init__(self, *, max_sessions: int, id_base: int) -> None:
        """Ids are ``id_base + 1`` and upwards; a base that differs at every start keeps a
        host of an earlier start from closing a session of this one."""
        self._max_sessions = max_sessions
        self._next_id = id_base + 1
        self._sessions: dict[int, Session] = {}
        self._namespaces: dict[str, Namespace] = {}
        """In the order in which a session last came to them or left them."""
        self.draining = False

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session_id: int) -> bool:
        return session_id in self._sessions

    def attach(self, client_name: str, namespace: Namespace) -> Session:
        """A new session.

        ``DrainingError`` when draining, ``NamespaceMismatchError`` when the name is known
        with another descriptor, ``CapacityError`` when there are too many sessions, or too
        many namespaces that are in use.
        """
        if self.draining:
            raise DrainingError("the agent is draining and takes no new sessions; use another")
        if len(self._sessions) >= self._max_sessions:
            raise CapacityError(
                f"all {self._max_sessions} sessions are taken; close one, or raise "
                f"sessions.max_sessions of the agent"
            )
        known = self._namespaces.get(namespace.name)
        if known is not None:
            known.require_same(namespace)
        elif len(self._namespaces) >= MAX_NAMESPACES:
            self._forget_longest_unused()
        self._namespaces[namespace.name] = namespace
        self._note_use(namespace.name)
        session = Session(self._next_id, client_name, namespace, founder=known is None)
        self._next_id += 1
        self._sessions[session.session_id] = session
        return session

    def get(self, session_id: int) -> Session:
        """An open session; ``SessionNotFoundError``."""
        try:
            return self._sessions[session_id]
        except KeyError:
            raise SessionNotFoundError(
                f"sessions/{session_id} is not open: it was closed, or the agent has "
                f"restarted; open a new one"
            ) from None

    def remove(self, session_id: int) -> Session:
        """Take a session out, so that it is no longer found; ``SessionNotFoundError``."""
        session = self.get(session_id)
        del self._sessions[session_id]
        self._note_use(session.namespace.name)
        return session

    def abandon(self, session_id: int) -> None:
        """Take a session out that never came to be: it stored nothing, so a namespace that
        it was the first and only one to name is forgotten with it."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        name = session.namespace.name
        shared = any(other.namespace.name == name for other in self._sessions.values())
        if session.founder and not shared:
            del self._namespaces[name]

    def ids(self) -> list[int]:
        """Open sessions, oldest first."""
        return list(self._sessions)

    def drain(self) -> None:
        """Refuse new sessions from now on, and tell those who watch present ones."""
        if not self.draining:
            self.draining = True
            for session in self._sessions.values():
                session.tell(SessionNews.DRAINING, "the agent is draining")

    def _note_use(self, name: str) -> None:
        """Move a namespace behind all others."""
        self._namespaces[name] = self._namespaces.pop(name)

    def _forget_longest_unused(self) -> None:
        in_use = {session.namespace.name for session in self._sessions.values()}
        unused = next((name for name in self._namespaces if name not in in_use), None)
        if unused is None:
            raise CapacityError(
                f"all {MAX_NAMESPACES} namespaces that the agent can know have sessions; attach "
                f"to one of them, or close the sessions of another"
            )
        del self._namespaces[unused]

    def namespaces(self) -> list[tuple[Namespace, int]]:
        """Each known descriptor and how many sessions are attached to it."""
        counts = dict.fromkeys(self._namespaces, 0)
        for session in self._sessions.values():
            counts[session.namespace.name] += 1
        return [(namespace, counts[name]) for name, namespace in self._namespaces.items()]
