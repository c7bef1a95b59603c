"""Tiers on a command line, and what is said of wrong ones."""

from __future__ import annotations

import pytest

from kvlane.errors import ConfigError
from kvlane.tier_sizes import TierSize, parse_policies, parse_tiers


def test_tiers_have_a_name_a_size_and_perhaps_a_place() -> None:
    assert parse_tiers(["hbm=4GiB", "dram=1000", "nvme=1TiB:/mnt/nvme0:/mnt/nvme1"]) == [
        TierSize("hbm", 4 << 30),
        TierSize("dram", 1000),
        TierSize("nvme", 1 << 40, "/mnt/nvme0:/mnt/nvme1"),
    ]


@pytest.mark.parametrize(
    ("tiers", "complaint"),
    [
        (["dram"], "write NAME=SIZE"),
        (["tape=1GiB"], "unknown tier 'tape'; one of hbm, dram, nvme, remote"),
        (["dram=much"], "'much' is not a size"),
        (["dram="], "is not a size"),
        (["dram=1GiB", "dram=2GiB"], "appears twice"),
        (["nvme=1GiB", "dram=1GiB"], "not from hot to cold; write dram, nvme"),
    ],
)
def test_a_wrong_tier_is_named(tiers: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_tiers(tiers)


@pytest.mark.parametrize(
    ("texts", "policies"),
    [
        ([], {"hbm": "lru", "dram": "lru", "nvme": "lru"}),
        (["reuse"], {"hbm": "lru", "dram": "lru", "nvme": "reuse"}),
        (["dram=mq", "reuse"], {"hbm": "lru", "dram": "mq", "nvme": "reuse"}),
        (["nvme=mq", "arc", "hbm=sieve"], {"hbm": "sieve", "dram": "lru", "nvme": "mq"}),
    ],
)
def test_a_policy_is_the_coldest_tiers_or_of_the_one_named(
    texts: list[str], policies: dict[str, str]
) -> None:
    assert parse_policies(texts, ["hbm", "dram", "nvme"]) == policies


def test_a_policy_of_a_tier_that_there_is_not_is_named() -> None:
    with pytest.raises(ConfigError, match="there is no tier 'nvme' here; one of dram"):
        parse_policies(["nvme=lru"], ["dram"])
