"""Driving a device that has no thread of its own: turns, sleep, and what went wrong."""
