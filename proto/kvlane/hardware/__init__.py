"""RDMA devices through pyverbs, behind the verbs of the project; nothing imports it before use."""
