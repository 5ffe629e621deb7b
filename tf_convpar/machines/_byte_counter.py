"""Counts the bytes that travel between tasks of this machine."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from collections.abc import Iterable

import psutil

from tf_convpar.machines._sockets import BytesReceived


def byte_counter(ports: Iterable[int]) -> tuple[Callable[[], int], str]:
    """A counter of the bytes between tasks of this machine, both ways.

    ```python
    total, counted_on = byte_counter([2222, 2223])
    total()  # 51034112
    ```

    Args:
        ports: Ports of the tasks, which must listen already.

    Returns:
        A function that returns the bytes until now, and what it counts them
        on: `"sockets"`, or `"loopback"` where the kernel tells nothing of
        sockets. The counters of that interface include what other programs
        send.

    Raises:
        RuntimeError: Nobody listens at one of the ports.
    """
    try:
        return BytesReceived(ports).total, "sockets"
    except OSError:
        name = _loopback()

    def sent() -> int:
        # What one end of a loopback sends the other receives. It counts once.
        return int(psutil.net_io_counters(pernic=True)[name].bytes_sent)

    return sent, "loopback"


def _loopback() -> str:
    """Name of the interface that carries this machine's traffic with itself."""
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            try:
                # An IPv6 address may have its interface behind a `%`.
                host = ipaddress.ip_address(address.address.partition("%")[0])
            except ValueError:
                continue  # A hardware address.
            if host.is_loopback:
                return name
    raise RuntimeError(
        "Expected a loopback interface to count bytes on. Received: "
        f"{sorted(psutil.net_if_addrs())}."
    )
