"""The data path: capsules in, one-sided transfers, capsules out. One thread owns all of it."""
