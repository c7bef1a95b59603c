"""What the bytes of a block mean: the descriptor that makes a key safe to reuse.

Two engines may share a block only if everything that shapes its bytes is equal. The
descriptor names all of it, is hashed into every key, is stored once by the agent and
compared at attach. Reuse across dtypes, layouts, weights or ranks returns wrong answers
without an error, so a difference is a refusal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from kvlane.errors import ConfigError, NamespaceMismatchError

HASH_ALGORITHM = "blake2b-256"
HASH_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """One model's KV cache in one layout, as one rank sees it."""

    name: str = "default"
    model: str = ""
    """Model identity, such as a hub name or a hash of its configuration."""
    weights_version: str = ""
    """Changes whenever weights change (an RL step, a fine-tune)."""
    kv_dtype: str = ""
    """Element type, such as bfloat16 or float8_e4m3."""
    quantization: str = ""
    """Scheme and scales of the cache's quantisation; empty for none."""
    layout: str = ""
    """Physical order of the block's axes, by the engine's own name for it."""
    block_tokens: int = 0
    block_bytes: int = 0
    """Payload of one block; 0 when blocks vary."""
    first_layer: int = 0
    num_layers: int = 0
    first_kv_head: int = 0
    num_kv_heads: int = 0
    head_dim: int = 0
    tensor_rank: int = 0
    tensor_size: int = 1
    pipeline_rank: int = 0
    pipeline_size: int = 1
    context_rank: int = 0
    context_size: int = 1
    group: str = ""
    """KV group of a hybrid model."""
    lora: str = ""
    engine_key_format: str = ""
    """Engine family and version of its block hash, where keys are made from engine hashes."""
    hash_algorithm: str = HASH_ALGORITHM
    hash_version: int = HASH_VERSION

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            wanted = int if field.type == "int" else str
            # Exact, because 1, 1.0 and True are equal but have different encodings.
            if type(value) is not wanted:
                raise ConfigError(
                    f"namespace {field.name} must be {wanted.__name__}, not {value!r}"
                )
            if isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
                raise ConfigError(f"namespace {field.name} is not valid Unicode: {value!r}")
            if isinstance(value, int) and not 0 <= value < 1 << 32:
                raise ConfigError(f"namespace {field.name} must be 0 to 2^32 - 1, not {value}")
        if not self.name or len(self.name) > 128 or not self.name.isprintable():
            raise ConfigError("a namespace needs a printable name of 1 to 128 characters")
        if (self.hash_algorithm, self.hash_version) != (HASH_ALGORITHM, HASH_VERSION):
            raise ConfigError(
                f"keys are made by {HASH_ALGORITHM} version {HASH_VERSION}, not by "
                f"{self.hash_algorithm} version {self.hash_version}"
            )

    def canonical(self) -> bytes:
        """The descriptor's one encoding: ASCII JSON, names sorted, no white space."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode("ascii")

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> Namespace:
        """From field names and values; ``ConfigError`` names an unknown or mistyped one."""
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                raise ConfigError(f"unknown namespace field {name!r}")
        return cls(**values)  # type: ignore[arg-type]

    def require_same(self, offered: Namespace) -> None:
        """``NamespaceMismatchError`` naming the first field in which ``offered`` differs."""
        for field in fields(self):
            stored, other = getattr(self, field.name), getattr(offered, field.name)
            if stored != other:
                raise NamespaceMismatchError(self.name, field.name, repr(stored), repr(other))
