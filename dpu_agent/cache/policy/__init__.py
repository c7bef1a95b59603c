"""Eviction policies, one a file, behind one interface."""
