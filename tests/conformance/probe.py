"""Says in JSON which devices a program finds, with the IPv4 address of each.

Started like child.py, so that the environment made for the tests describes the devices that
the tests will see.
"""

from __future__ import annotations

import ipaddress
import json
import sys

from pyverbs.device import Context, get_device_list

PORT = 1
LOOPBACK = "127.0.0.1"


def ipv4_address(context: Context) -> str:
    """The first IPv4 address among the GIDs of the port, else where every device listens."""
    for index in range(context.query_port(PORT).gid_tbl_len):
        mapped = ipaddress.IPv6Address(context.query_gid(PORT, index).gid).ipv4_mapped
        if mapped is not None:
            return str(mapped)
    return LOOPBACK


def main() -> int:
    devices = []
    for device in get_device_list():
        name = device.name.decode()
        context = Context(name=name)
        devices.append({"name": name, "ip_address": ipv4_address(context)})
        context.close()
    json.dump(devices, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
