"""Counts the bytes that the sockets of some ports have received, on Linux.

The counters of a network interface include what other programs send. Those of
a socket (`ss -ti` shows them) are asked from the kernel by a netlink socket,
without privileges. Python's `struct` reads the answer. pyroute2 could read it
too, but it cannot tell a kernel that refuses from one that has no such socket,
and it reads past the end of what older kernels tell.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterable
from collections.abc import Iterator

# linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h, linux/tcp_states.h.
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_OF_ALL = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ERROR, _DONE = 2, 3
_INFO = 2  # INET_DIAG_INFO: the attribute that is a `struct tcp_info`.
_TIME_WAIT = 6
# All states but SYN_SENT and SYN_RECV (no connection yet), and CLOSE.
_STATES = 0xFFF & ~(1 << 2 | 1 << 3 | 1 << 7)

# A netlink header, then a `struct inet_diag_req_v2`. From the ports on that is
# a `struct inet_diag_sockid`, of which only the ports are given.
_REQUEST = struct.Struct("=IHHII BBBxI 4s44x")
_HEADER = struct.Struct("=IH10x")  # Length and type of a message.
_CODE = struct.Struct("=i")  # What _ERROR and _DONE hold.
_SOCKET = struct.Struct("=xB42xQ20x")  # State and cookie; then attributes.
_ATTRIBUTE = struct.Struct("=HH")  # Length and type.
_RECEIVED = struct.Struct("=128xQ")  # tcpi_bytes_received.

_TIMEOUT_S = 10.0


class BytesReceived:
    """Counts the bytes that the sockets of some ports have received.

    ```python
    received = BytesReceived(task.port for task in strategy.cluster.tasks)
    before = received.total()
    model.train_on_batch(x, y)
    received.total() - before
    ```

    These are the TCP sockets that have one of the ports at either end. A
    connection within this machine has both its ends here, so its total is all
    bytes, both ways. The total of a connection to another machine is the bytes
    that came from there.

    Bytes are payload, without TCP's headers. They count once, however often TCP
    had to send them, which is why received bytes are counted and not sent ones.
    The kernel counts bytes before it hands them to the program, so there is
    nothing to wait for: what a program has read is in the total.

    Args:
        ports: Ports of this machine's tasks, which must listen already.

    Raises:
        OSError: The kernel does not tell; the message has the cure.
        RuntimeError: Nobody listens at one of the ports.
    """

    def __init__(self, ports: Iterable[int]) -> None:
        self._ports = tuple(sorted(set(ports)))
        self._received, self._ended = self._read()

    def total(self) -> int:
        """Bytes that all sockets have received since they were connected.

        Raises:
            RuntimeError: A connection ended since the last count: nobody
                knows any more what it received.
        """
        received, ended = self._read()
        lost = (self._received.keys() - received.keys()) | (ended - self._ended)
        if lost:
            raise RuntimeError(
                "Expected connections of ports "
                f"{', '.join(map(str, self._ports))} to last while their bytes "
                f"are counted. Received: {len(lost)} ended since the last "
                "count, and what they received until then is not known. See "
                "whether a task ended, and start counting anew."
            )
        self._received, self._ended = received, ended
        return sum(received.values())

    def _read(self) -> tuple[dict[int, int], set[int]]:
        """Bytes that each socket has received, and the sockets that ended.

        Sockets are named by their cookies; see `_sockets_of`.
        """
        received: dict[int, int] = {}
        ended: set[int] = set()
        for port in self._ports:
            sockets = dict(_sockets_of(port))
            if not sockets:
                raise RuntimeError(
                    f"Expected a task that listens at port {port} of this "
                    "machine, to count its bytes. Received: no such socket. "
                    "Start counting when the cluster has been joined."
                )
            for cookie, count in sockets.items():
                if count is None:
                    ended.add(cookie)
                else:
                    received[cookie] = count
        return received, ended


def _sockets_of(port: int) -> Iterator[tuple[int, int | None]]:
    """Cookies of the sockets with this port at either end, and their bytes.

    The bytes received are None for a socket that has ended. No other socket
    gets the same cookie as long as Linux runs.
    """
    number = port.to_bytes(2, "big")
    try:
        with socket.socket(
            socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG
        ) as kernel:
            kernel.settimeout(_TIMEOUT_S)
            # A connection over IPv4 may have a socket of IPv6 at one end.
            for family in (socket.AF_INET, socket.AF_INET6):
                for ports in (number + bytes(2), bytes(2) + number):
                    yield from map(_read_socket, _ask(kernel, family, ports))
    except (OSError, AttributeError) as error:
        raise OSError(
            "Expected Linux' socket diagnostics, to count the bytes of "
            f"sockets. Received: {error}. They come with Linux 4.1, in its "
            "module tcp_diag: modprobe tcp_diag."
        ) from error


def _ask(
    kernel: socket.socket, family: int, ports: bytes
) -> Iterator[memoryview]:
    """Yields a `struct inet_diag_msg` with its attributes for each socket."""
    kernel.send(
        _REQUEST.pack(
            *(_REQUEST.size, _SOCK_DIAG_BY_FAMILY, _REQUEST_OF_ALL, 0, 0),
            *(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _STATES, ports),
        )
    )
    while True:
        answer = memoryview(kernel.recv(1 << 16))
        while answer:
            length, kind = _HEADER.unpack_from(answer)
            message = answer[_HEADER.size : length]
            if kind in (_ERROR, _DONE):
                (code,) = _CODE.unpack_from(message)
                if code < 0:
                    raise OSError(-code, os.strerror(-code))
                return
            yield message
            answer = answer[_aligned(length) :]


def _read_socket(message: memoryview) -> tuple[int, int | None]:
    """A socket's cookie and the bytes it received; None if it has ended."""
    state, cookie = _SOCKET.unpack_from(message)
    if state == _TIME_WAIT:
        return cookie, None
    rest = message[_SOCKET.size :]
    while rest:
        length, kind = _ATTRIBUTE.unpack_from(rest)
        if kind == _INFO and length >= _ATTRIBUTE.size + _RECEIVED.size:
            return cookie, *_RECEIVED.unpack_from(rest, _ATTRIBUTE.size)
        rest = rest[_aligned(length) :]
    raise OSError(errno.ENODATA, "no count of bytes of a socket")


def _aligned(length: int) -> int:
    """The length with its padding: netlink pads to four bytes."""
    return (length + 3) & ~3
