"""Latency profiles: what ships is whole and says where it is from; what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpu_agent.planning.profile import DEFAULT_PROFILE, load_profile, shipped_profiles
from kvlane.errors import ConfigError
from kvlane.tier_sizes import TIER_NAMES


@pytest.mark.parametrize("name", shipped_profiles())
def test_what_ships_has_figures_and_a_basis_for_every_tier(name: str) -> None:
    profile = load_profile(name)
    for tier in TIER_NAMES:
        assert profile.of(tier).basis
        assert profile.of(tier).source in ("measured", "stated")
    assert profile.accelerator.basis
    assert profile.model.basis


def test_the_default_is_llama_3_70b() -> None:
    model = load_profile(DEFAULT_PROFILE).model
    layers, kv_heads, head_values, kinds, value_bytes = 80, 8, 128, 2, 2
    assert model.kv_bytes_per_token == layers * kv_heads * head_values * kinds * value_bytes
    assert model.block_bytes == 160 << 20
    assert model.flops_per_token == pytest.approx(2 * 70.6e9)


def test_tiers_are_from_fast_to_slow() -> None:
    profile = load_profile(DEFAULT_PROFILE)
    latencies = [profile.of(tier).latency_us for tier in TIER_NAMES]
    assert latencies == sorted(latencies)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("model: {kv_bytes_per_token: 1KiB}\nhdm: {}", "hdm is an unknown key"),
        ("model: {kv_bytes_per_token: 1KiB}\ndram: {latency: 1}", "dram.latency is an unknown key"),
        ("dram: {source: guessed}", "source"),
        ("{}", "model.kv_bytes_per_token must be given"),
        ("model: {kv_bytes_per_token: many}", "kv_bytes_per_token"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        load_profile(str(path))


def test_a_tier_that_a_profile_does_not_know_is_named(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text("model: {kv_bytes_per_token: 1KiB}\ndram: {gigabytes_per_second: 9}")
    profile = load_profile(str(path))
    assert profile.of("dram").gigabytes_per_second == 9
    with pytest.raises(ConfigError, match="says nothing of tier nvme"):
        profile.of("nvme")


def test_a_name_that_is_neither_profile_nor_file_lists_those_that_ship() -> None:
    with pytest.raises(ConfigError, match=DEFAULT_PROFILE):
        load_profile("gpt-9")
