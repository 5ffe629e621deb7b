"""Connections of this process that are cut from inside it.

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
    """All that `host:port` may stand for, as connections name it.

    Raises:
        OSError: The host is not known.
    """
    host, _, port = address.rpartition(":")
    found = socket.getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_STREAM
    )
    return {(plain(str(where[0])), int(port)) for *_, where in found}


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
    """Connections of this process, as psutil has them; none that listens."""
    found = psutil.Process().net_connections("tcp")
    return [one for one in found if one.raddr]


def end(connections: Iterable[Any]) -> int:
    """Ends some of those, and returns their number."""
    count = 0
    for one in connections:
        # It may have been closed meanwhile.
        with contextlib.suppress(OSError):
            with socket.socket(fileno=os.dup(one.fd)) as own:
                own.shutdown(socket.SHUT_RDWR)
            count += 1
    return count


def plain(host: str) -> str:
    """An address as text; gRPC's are of IPv6, which have those of IPv4."""
    address = ipaddress.ip_address(host.partition("%")[0])
    inner = getattr(address, "ipv4_mapped", None)
    return str(inner or address)
