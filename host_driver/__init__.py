"""The Python API of a host: connect to an agent on a DPU, store blocks there, fetch them back."""

from host_driver.client import Dpu, connect
from host_driver.config import DriverConfig
from host_driver.results import RetrieveResult, StoreResult
from host_driver.sync import SyncDpu, connect_sync
from kvlane import errors
from kvlane.capsule import KeyStatus
from kvlane.keys import adopted_key, block_chain, block_key
from kvlane.namespace import Namespace

__all__ = [
    "Dpu",
    "DriverConfig",
    "KeyStatus",
    "Namespace",
    "RetrieveResult",
    "StoreResult",
    "SyncDpu",
    "adopted_key",
    "block_chain",
    "block_key",
    "connect",
    "connect_sync",
    "errors",
]
