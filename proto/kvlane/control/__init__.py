"""The control API between driver and agent, and what both sides need to speak it."""
