"""Colder tiers behind the block store: what leaves memory, and what comes back."""
