"""The block cache, sans-IO: index, slots, policies. It decides; others move bytes."""
