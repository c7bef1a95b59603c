"""What a replay in virtual time takes memory and computing to cost: a latency profile.

Figures come from a YAML file, and each group says whether it was measured or is stated, and on what
basis; reports repeat that.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvlane.config import BYTES, load_file, setting
from kvlane.errors import ConfigError

DEFAULT_PROFILE = "llama-3-70b-fp16"
_SHIPPED = Path(__file__).parent / "profiles"
_SUFFIX = ".yaml"
SOURCES = ("measured", "stated")


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """The model whose cache it is."""

    name: str = setting("", "What reports call it.")
    kv_bytes_per_token: int = setting(
        0, "Keys and values of one token, all layers and ranks together.", unit=BYTES
    )
    block_tokens: int = setting(512, "Tokens of a full block of the trace.", minimum=1)
    flops_per_token: float = setting(
        0.0,
        "Floating-point operations of prefill for one token.",
        rule="Twice the number of parameters; say in the basis what of attention is in it.",
        minimum=0,
    )
    basis: str = setting("", "Where these figures are from.")

    @property
    def block_bytes(self) -> int:
        """A full block."""
        return self.kv_bytes_per_token * self.block_tokens


@dataclass(frozen=True, slots=True)
class AcceleratorFigures:
    """What computes the prefill."""

    prefill_tflops: float = setting(
        0.0, "Sustained rate of prefill, in units of 10^12 operations a second.", minimum=0
    )
    source: str = setting("stated", "Whether it was measured.", choices=SOURCES)
    basis: str = setting("", "How it was measured, or where it is stated.")


@dataclass(frozen=True, slots=True)
class TierFigures:
    """How fast blocks come from a tier to where they are used."""

    latency_us: float = setting(
        0.0, "Until the first byte, once a request.", unit="microseconds", minimum=0
    )
    gigabytes_per_second: float = setting(
        0.0, "Of all blocks of a request together; 1 GB is 10^9 bytes.", minimum=0
    )
    source: str = setting("stated", "Whether they were measured.", choices=SOURCES)
    basis: str = setting("", "How they were measured, or where they are stated.")


@dataclass(frozen=True, slots=True)
class LatencyProfile:
    """All that a virtual replay knows of costs."""

    model: ModelFigures = ModelFigures()
    accelerator: AcceleratorFigures = AcceleratorFigures()
    hbm: TierFigures = TierFigures()
    dram: TierFigures = TierFigures()
    nvme: TierFigures = TierFigures()
    remote: TierFigures = TierFigures()

    def validate(self) -> None:
        """``ConfigError`` for a figure that everything rests on and that is missing."""
        if self.model.kv_bytes_per_token == 0:
            raise ConfigError("model.kv_bytes_per_token must be given, such as 320KiB")

    def of(self, tier: str) -> TierFigures:
        """The figures of a tier; ``ConfigError`` when the profile has none."""
        figures: TierFigures = getattr(self, tier)
        if figures.gigabytes_per_second == 0:
            raise ConfigError(
                f"the profile says nothing of tier {tier}; give it a section {tier!r} with "
                f"latency_us and gigabytes_per_second"
            )
        return figures


def shipped_profiles() -> list[str]:
    """Names of the profiles that come with kvlane."""
    return sorted(path.stem for path in _SHIPPED.glob(f"*{_SUFFIX}"))


def load_profile(name: str) -> LatencyProfile:
    """A profile that comes with kvlane by its name, or one of your own by the path of its file."""
    if name in shipped_profiles():
        return load_file(LatencyProfile, _SHIPPED / f"{name}{_SUFFIX}")
    if "/" not in name and not name.endswith((".yaml", ".yml")):
        raise ConfigError(
            f"--profile {name!r}: no such profile; one of {', '.join(shipped_profiles())}, or the "
            f"path of a YAML file"
        )
    return load_file(LatencyProfile, name)
