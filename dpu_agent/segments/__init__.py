"""Blocks in files: an append-only log of segments over one or several directories."""
