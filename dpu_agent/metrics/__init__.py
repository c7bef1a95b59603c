"""Figures of the agent for Prometheus: what they are, where they come from, who serves them."""
