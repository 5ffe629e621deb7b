"""Filters who may reach the port of a task; TensorFlow listens to everybody.

Its server binds every interface of its machine, whatever the cluster says, and
whoever reaches it may run operations. So its sockets get a filter of the
kernel (classic BPF, which needs no rights), by the addresses that packets were
sent to, and by the interfaces they came by: Linux takes packets for any of its
addresses from any interface, so that a neighbour in one network could reach an
address in another, such as a VPN.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import psutil

from tf_convpar.cluster import connections
from tf_convpar.cluster.spec import Task
from tf_convpar.cluster.spec import is_loopback

Net = ipaddress.IPv4Network | ipaddress.IPv6Network

# The environment variable by which a chief's program is told.
VARIABLE = "CONVPAR_LISTEN"


@dataclasses.dataclass(frozen=True)
class Door:
    """Addresses and interfaces at which packets are accepted.

    Attributes:
        net: Addresses that they may be sent to.
        interfaces: Numbers of the interfaces that they may come by; empty for
            all.
    """

    net: Net
    interfaces: tuple[int, ...] = ()


# Only this machine can send packets to these.
LOOPBACK = (
    Door(ipaddress.ip_network("127.0.0.0/8")),
    Door(ipaddress.ip_network("::1/128")),
)

# From <linux/filter.h>: instructions, where the IP header begins, and where the
# number of the interface is.
_ATTACH_FILTER = 26
_LOAD, _LOAD_BYTE, _AND, _IF_EQUAL, _RETURN = 0x20, 0x30, 0x54, 0x15, 0x06
_HEADER, _INTERFACE = -0x100000, -0x1000 + 8
_ALL = 0xFFFFFFFF
# From <linux/in.h> and <linux/in6.h>: an option that has a connection tell how
# it came, the option that tells it, and where in that the interface is.
_CAME_BY = {
    socket.AF_INET: (socket.IPPROTO_IP, 8, 9, 16),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 49, 6, 32),
}
# Bytes from the beginning of the header to the address that is sent to.
_TO = {4: 16, 6: 24}


def wanted(task: Task, address: str | None = None) -> list[Door] | None:
    """The addresses at which a task is reached, as its user wants.

    ```python
    wanted(cluster.task, "10.0.0.2")  # that, and from this machine
    ```

    Args:
        task: A task of this process.
        address: An address or name of this machine, by which others reach it;
            `0.0.0.0` for all. None is what CONVPAR_LISTEN says; without that,
            a task at `localhost` is reached from this machine only, where that
            is Linux, and others by all addresses.

    Returns:
        The doors; None for all packets. An address is reached by the interface
        that has it, and from this machine. An address that the loopback
        interface has as well is reached by all interfaces.

    Raises:
        OSError: This machine has no such address.
    """
    address = address or os.environ.get(VARIABLE) or None
    if address is None:
        here = is_loopback(task.address) and sys.platform == "linux"
        return [*LOOPBACK] if here else None
    if address in ("0.0.0.0", "::"):
        return None
    return [*LOOPBACK, *_doors(address)]


def restrict(port: int, doors: Sequence[Door] | None) -> None:
    """Drops all packets to a port of this process that come by no door.

    Earlier connections that came by no door are ended. Those that the process
    has not accepted yet are all closed; a welcome peer connects again.

    Args:
        port: Port at which a server of this process listens.
        doors: Doors for packets; None for all packets.

    Raises:
        OSError: Nothing of this process listens at the port, or the kernel has
            no such filter.
    """
    if doors is None:
        return
    listeners = [
        c.fd
        for c in psutil.Process().net_connections("tcp")
        if c.status == psutil.CONN_LISTEN and c.laddr.port == port
    ]
    if not listeners:
        raise OSError(f"Expected this process to listen at port {port}.")
    program = _program(doors)
    kept = ctypes.create_string_buffer(program)
    pointer = struct.pack("HL", len(program) // 8, ctypes.addressof(kept))
    with contextlib.ExitStack() as stack:
        for fd in listeners:
            listener = stack.enter_context(socket.socket(fileno=os.dup(fd)))
            try:
                listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, pointer)
            except OSError as error:
                raise OSError(
                    error.errno,
                    "Expected a kernel that filters what arrives at a port, as "
                    f"Linux does. Received: {error.strerror}.",
                ) from None
            _turn_away(listener)
    connections.end(
        one
        for one in connections.established()
        if one.laddr.port == port and not _is_welcome(one, doors)
    )


def _turn_away(listener: socket.socket) -> None:
    """Closes the connections that wait to be accepted."""
    # Not blocking, as gRPC's sockets are: there may be none.
    listener.setblocking(False)
    while True:
        try:
            listener.accept()[0].close()
        except ConnectionAbortedError:
            continue
        except OSError:
            return


def _is_welcome(connection: Any, doors: Sequence[Door]) -> bool:
    """Whether a connection comes by one of the doors."""
    to = ipaddress.ip_address(connections.plain(connection.laddr.ip))
    through = [door for door in doors if to in door.net]
    if not all(door.interfaces for door in through):
        return True
    # It may have been closed meanwhile.
    with contextlib.suppress(OSError):
        with socket.socket(fileno=os.dup(connection.fd)) as duplicate:
            number = _interface(duplicate)
        return any(number in door.interfaces for door in through)
    return False


def _interface(connection: socket.socket) -> int:
    """Number of the interface that a connection came by.

    One that came from this machine has the interface of the address.
    """
    level, wanted, options, place = _CAME_BY[connection.family]
    connection.setsockopt(level, wanted, 1)
    info = connection.getsockopt(level, options, 64)
    connection.setsockopt(level, wanted, 0)
    return int(struct.unpack_from("I", info, place)[0])


def _doors(address: str) -> list[Door]:
    host = address.strip("[]")
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "no name of a machine"
        raise OSError(
            f"Expected an address of this machine to listen on, or its name. "
            f"Received {address!r}: {why}."
        ) from None
    asked = {str(where[0]).partition("%")[0] for *_, where in infos}
    interfaces: dict[str, set[str]] = {}
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family in (socket.AF_INET, socket.AF_INET6):
                host = entry.address.partition("%")[0]
                # Additional addresses of eth0 may be those of eth0:1.
                interfaces.setdefault(host, set()).add(name.partition(":")[0])
    if not asked & interfaces.keys():
        raise OSError(
            "Expected an address of this machine to listen on. Received "
            f"{address!r}, {', '.join(sorted(asked))}; it has "
            f"{', '.join(sorted(interfaces))}."
        )
    loopback = interfaces.get("127.0.0.1", set())
    return [
        Door(
            ipaddress.ip_network(host),
            _interface_numbers(interfaces[host], loopback),
        )
        for host in sorted(asked & interfaces.keys())
    ]


def _interface_numbers(names: set[str], loopback: set[str]) -> tuple[int, ...]:
    """Numbers of these interfaces and of loopback; none if one is loopback."""
    if names & loopback:
        return ()
    return tuple(map(socket.if_nametoindex, sorted(names | loopback)))


def _program(doors: Iterable[Door]) -> bytes:
    """The filter that accepts packets by one of these doors, and no others."""
    doors = list(doors)
    code = [_instruction(_LOAD_BYTE, _HEADER), _instruction(_AND, 0xF0)]
    for version in (4, 6):
        body = [
            line
            for door in doors
            if door.net.version == version
            for line in _door_program(door)
        ]
        body.append(_instruction(_RETURN, 0))
        code.append(_instruction(_IF_EQUAL, version << 4, 0, len(body)))
        code += body
    return b"".join([*code, _instruction(_RETURN, 0)])


def _door_program(door: Door) -> list[bytes]:
    """Instructions that accept a packet by this door, or else fall through."""
    net = door.net
    words = list(_words(net.network_address.packed))
    masks = list(_words(net.netmask.packed))
    # Comparisons: the value, and whether the next one may match instead.
    code: list[bytes | tuple[int, bool]] = []
    for i, (word, mask) in enumerate(zip(words, masks, strict=True)):
        if mask:
            code.append(_instruction(_LOAD, _HEADER + _TO[net.version] + 4 * i))
            code.append(_instruction(_AND, mask))
            code.append((word, False))
    if door.interfaces:
        code.append(_instruction(_LOAD, _INTERFACE))
        *first, last = door.interfaces
        code += [(number, True) for number in first]
        code.append((last, False))
    lines = []
    for i, line in enumerate(code):
        # Without a match it jumps behind these lines; the last one accepts.
        left = len(code) - i
        if not isinstance(line, bytes):
            value, more = line
            jumps = (left - 1, 0) if more else (0, left)
            line = _instruction(_IF_EQUAL, value, *jumps)
        lines.append(line)
    return [*lines, _instruction(_RETURN, _ALL)]


def _words(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"!{len(packed) // 4}I", packed)


def _instruction(
    code: int, value: int, if_so: int = 0, if_not: int = 0
) -> bytes:
    return struct.pack("HBBI", code, if_so, if_not, value & _ALL)
