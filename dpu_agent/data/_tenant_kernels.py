"""What the sessions of a tenant looked up and moved, counted once a command."""

from __future__ import annotations

from typing import Any

from dpu_agent.data.counting import TENANT_WORDS, Found
from kvlane.jit import kernel
from kvlane.rawmem import words_at

_IN_MEMORY = int(Found.IN_MEMORY)
_IN_NVME = int(Found.IN_NVME)
_NOWHERE = int(Found.NOWHERE)


@kernel
def count_keys(connection: Any, first: int, in_memory: int, in_nvme: int, nowhere: int) -> None:
    """Where keys were found; ``first`` of their words says what the command was."""
    words = words_at(connection.tenant, TENANT_WORDS)
    words[first + _IN_MEMORY] += in_memory
    words[first + _IN_NVME] += in_nvme
    words[first + _NOWHERE] += nowhere


@kernel
def count_bytes(connection: Any, word: int, nbytes: int) -> None:
    """Payload that has moved between a host and memory."""
    words_at(connection.tenant, TENANT_WORDS)[word] += nbytes
