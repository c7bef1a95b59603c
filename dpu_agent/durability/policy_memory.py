"""What eviction policies have learnt, in files: written now and then, read at the next start.

A file is replaced in one step, so a crash leaves the last one. One that cannot be read is put
aside, and the policy starts anew: what is learnt is worth hits, not a start that fails.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Protocol, runtime_checkable

from dpu_agent.cache.policy.base import EvictionPolicy
from dpu_agent.cache.policy.registry import make_policy
from dpu_agent.cache.store import BlockStore
from kvlane.errors import ConfigError

_log = logging.getLogger(__name__)
_SUFFIX = ".learnt"
_DAMAGED = ".damaged"


@runtime_checkable
class _Learning(Protocol):
    def learnt(self) -> bytes:
        """See ``make_policy``."""


class PolicyMemory:
    """One directory; without one nothing is kept."""

    def __init__(self, directory: str) -> None:
        """``ConfigError`` where it cannot be written to; it is made if it is not there."""
        self._directory = Path(directory) if directory else None
        self._kept: dict[Path, BlockStore] = {}
        self._failed = False
        if self._directory is not None:
            _require_writable(self._directory)

    def new_policy(self, tier: str, name: str, capacity_blocks: int) -> EvictionPolicy:
        """The policy of a tier, with what the last one there has learnt."""
        path = self._path(tier, name)
        if path is None or not path.exists():
            return make_policy(name, capacity_blocks)
        try:
            policy = make_policy(name, capacity_blocks, learnt=path.read_bytes())
        except (ConfigError, OSError) as error:
            _log.warning("%s: not used, put aside as %s (%s)", path, _DAMAGED, error)
            _put_aside(path)
            return make_policy(name, capacity_blocks)
        _log.info("the policy %s goes on with what it has learnt: %s", name, path)
        return policy

    def keep(self, tier: str, name: str, store: BlockStore) -> None:
        """Save from now on what the policy of a store learns, if it does."""
        path = self._path(tier, name)
        if path is not None and isinstance(store.policy, _Learning):
            self._kept[path] = store

    def save(self) -> None:
        """Write what has been learnt by now. A failure is logged once and changes nothing."""
        for path, store in self._kept.items():
            policy = store.policy
            assert isinstance(policy, _Learning)
            with store.quiet():
                learnt = policy.learnt()
            try:
                _replace(path, learnt)
                self._failed = False
            except OSError as error:
                if not self._failed:
                    _log.warning("%s: cannot be written (%s); what was there stays", path, error)
                self._failed = True

    @property
    def has_anything_to_save(self) -> bool:
        """Whether ``save`` is worth calling."""
        return bool(self._kept)

    def _path(self, tier: str, name: str) -> Path | None:
        return self._directory / f"{tier}-{name}{_SUFFIX}" if self._directory else None


def _require_writable(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe = directory / f"probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"state.directory {directory}: cannot be written to ({error.strerror}); name another, "
            f"or leave it empty"
        ) from error


def _put_aside(path: Path) -> None:
    try:
        path.replace(path.with_name(path.name + _DAMAGED))
    except OSError as error:
        _log.warning("%s: cannot be put aside (%s)", path, error)


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_name(path.name + ".new")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
