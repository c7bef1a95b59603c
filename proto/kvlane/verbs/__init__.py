"""The vocabulary of RDMA verbs that agent and driver speak; who answers is configuration."""
