"""A verbs device between processes of one host: shared memory instead of packets.

Agent and host see each other as they would over a DPU's PCIe: whoever posts an RDMA WRITE or
READ copies, whoever is written to spends nothing.
"""
