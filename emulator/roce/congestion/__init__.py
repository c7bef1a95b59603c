"""Congestion control of the requester: one algorithm a module, behind ``_pacing_kernels``."""
