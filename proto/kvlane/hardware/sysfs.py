"""What the kernel shows of a port in files: its counters above all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/class/infiniband")

_WORD_BYTES = 4
"""``port_rcv_data`` and ``port_xmit_data`` count words (IBTA 1.7 section 16.1.3.5)."""
_MLX5_NAMES = {
    "out_of_seq_request": "out_of_sequence",
    "rcvd_seq_err": "packet_seq_err",
    "completer_retry_err": "local_ack_timeout_err",
    "rcvd_rnr_err": "rnr_nak_retry_err",
    "send_rnr_err": "out_of_buffer",
    "rcvd_pkts": "rx_frames",
    "sent_pkts": "tx_frames",
}
"""Name in soft-RoCE's folder -> the name that mlx5 gives the same, or that the project does."""
_PORT_COUNTERS = {
    "port_rcv_packets": ("rx_frames", 1),
    "port_xmit_packets": ("tx_frames", 1),
    "port_rcv_data": ("rx_bytes", _WORD_BYTES),
    "port_xmit_data": ("tx_bytes", _WORD_BYTES),
}
"""Name in the folder of every kind of port -> name here, and what one count is."""
_NO_COUNTERS = frozenset({"lifespan"})


def port_folder(device: str, port: int) -> Path:
    """Where the kernel shows a port; there is no such folder for an emulated device."""
    return ROOT / device / "ports" / str(port)


def read_counters(folder: Path) -> dict[str, int]:
    """The counters of a port by the names of mlx5; none where the kernel shows none."""
    counters: dict[str, int] = {}
    for file, value in _numbers(folder / "counters"):
        if file in _PORT_COUNTERS:
            name, unit = _PORT_COUNTERS[file]
            counters[name] = value * unit
    for file, value in _numbers(folder / "hw_counters"):
        counters[_MLX5_NAMES.get(file, file)] = value
    return counters


def _numbers(folder: Path) -> Iterator[tuple[str, int]]:
    """The files of a folder that hold a number; a counter that a driver lacks cannot be read."""
    try:
        files = sorted(folder.iterdir())
    except OSError:
        return
    for file in files:
        if file.name in _NO_COUNTERS:
            continue
        try:
            yield file.name, int(file.read_text())
        except (OSError, ValueError):
            continue
