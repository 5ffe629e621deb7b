"""Cuts this process's own TCP connections to other machines.

A call of TensorFlow over such a connection fails at once, as if the other
process had died. It is what ends waiting for a machine that is silent; neither
cancelling the call nor gRPC's own deadlines do.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Collection
from collections.abc import Iterable
from typing import Any

import psutil

# The address of a machine, and a port.
Peer = tuple[str, int]


def peers_of(address: str) -> set[Peer]:
    """Addresses that `host:port` may stand for, as connections name them.

    Raises:
        OSError: The host is not known.
    """
    host, _, port = address.rpartition(":")
    infos = socket.getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_STREAM
    )
    return {(plain(str(where[0])), int(port)) for *_, where in infos}


def cut(peers: Collection[Peer]) -> int:
    """Ends this process's connections to others, finished or just begun.

    ```python
    cut(peers_of("b:2222"))
    ```

    Returns:
        The number of connections that were cut.
    """
    return end(
        one
        for one in established()
        if (plain(one.raddr.ip), one.raddr.port) in peers
    )


def established() -> list[Any]:
    """Connections of this process, as psutil has them, without listeners."""
    connections = psutil.Process().net_connections("tcp")
    return [c for c in connections if c.raddr]


def end(connections: Iterable[Any]) -> int:
    """Ends connections of `established`, and returns their number."""
    count = 0
    for one in connections:
        # It may have been closed meanwhile.
        with contextlib.suppress(OSError):
            with socket.socket(fileno=os.dup(one.fd)) as duplicate:
                duplicate.shutdown(socket.SHUT_RDWR)
            count += 1
    return count


def plain(host: str) -> str:
    """An address as text; IPv4 addresses that gRPC maps to IPv6 are undone."""
    address = ipaddress.ip_address(host.partition("%")[0])
    inner = getattr(address, "ipv4_mapped", None)
    return str(inner or address)
