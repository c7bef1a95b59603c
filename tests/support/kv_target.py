"""The agent that tests of the KV commands talk to, and how their driver reaches it.

By default that is an emulated agent of their own. Two variables name another, so that the same
tests hold over other verbs and other wires:

- ``KVLANE_TEST_AGENT``: ``host:port`` of the control plane of an agent that runs already, with
  slots of ``SLOT_BYTES``;
- ``KVLANE_TEST_DRIVER``: fields of ``DriverConfig`` as a JSON object.

A third, ``KVLANE_TEST_LINKS``, says over which links an emulated agent is tested: ``udp,pcie``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

import host_driver
from host_driver import Dpu, DriverConfig, Namespace, SyncDpu
from host_driver.emulated import EmulatedOptions
from tests.support.driver_calls import start_agent

SLOT_BYTES = 65536
_CAPACITY = 256 << 20


@dataclass(frozen=True, slots=True)
class KvTarget:
    """Where the agent is, and the settings of connections to it."""

    control: str
    config: DriverConfig

    async def connect(
        self, namespace: Namespace, *, salt: bytes = b"", verify_checksums: bool = False
    ) -> Dpu:
        """Another connection."""
        config = replace(self.config, verify_checksums=verify_checksums)
        return await host_driver.connect(
            self.control, namespace=namespace, salt=salt, config=config
        )

    def connect_sync(self, namespace: Namespace) -> SyncDpu:
        """Another connection, of the blocking client."""
        return host_driver.connect_sync(self.control, namespace=namespace, config=self.config)


_NAMED = "named"


def _links() -> list[Any]:
    """What tests of the commands run over, as parameters: one alone leaves no trace in names."""
    links = os.environ.get("KVLANE_TEST_LINKS", "udp,pcie").split(",")
    if "KVLANE_TEST_AGENT" in os.environ:
        links = [_NAMED]
    if len(links) == 1:
        return [pytest.param(links[0], id=pytest.HIDDEN_PARAM)]
    return list(links)


LINKS = _links()
"""Parameters for ``kv_target``."""


@contextmanager
def kv_target(link: str) -> Iterator[KvTarget]:
    """The agent that the variables name, or an emulated one that ends with the context."""
    fields = json.loads(os.environ.get("KVLANE_TEST_DRIVER", "{}"))
    control = os.environ.get("KVLANE_TEST_AGENT")
    if control is not None:
        yield KvTarget(control, DriverConfig(**fields))
        return
    config = DriverConfig(**{"device_options": {"link": link}, **fields})
    options = EmulatedOptions(capacity=_CAPACITY, block_bytes=SLOT_BYTES, link=link)
    agent = start_agent(options)
    try:
        yield KvTarget(agent.control, config)
    finally:
        agent.close()
