"""Bytes by socket: what these ports received, and nothing of anyone else."""

import contextlib
import socket
import subprocess
import sys
import threading

import pytest

from tf_convpar.cluster.local_cluster import reserved_port
from tf_convpar.machines import BytesReceived
from tf_convpar.machines import byte_counter

N = 3_000_017  # Many segments, and no round number of them.

IPV6 = pytest.mark.skipif(
    not socket.has_dualstack_ipv6(), reason="this machine has no IPv6"
)


@contextlib.contextmanager
def listener(address="127.0.0.1"):
    """A socket that listens; a dual one has IPv6, and hears IPv4 as well."""
    dual = address == "::"
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server(
        (address, 0), family=family, dualstack_ipv6=dual, backlog=200
    ) as server:
        server.settimeout(10)
        yield server


@contextlib.contextmanager
def connection(server, address="127.0.0.1"):
    """Both ends of a new connection; the one that connected first."""
    port = server.getsockname()[1]
    with socket.create_connection((address, port), timeout=10) as client:
        end, _ = server.accept()
        with end:
            yield client, end


def send(source, target, count):
    """Sends so many bytes, and returns when they have been read."""
    thread = threading.Thread(target=source.sendall, args=(bytes(count),))
    thread.start()
    while count:
        count -= len(target.recv(min(count, 1 << 20)))
    thread.join()


def port_of(server):
    return server.getsockname()[1]


@pytest.mark.parametrize(
    ("at", "to"),
    [
        ("127.0.0.1", "127.0.0.1"),
        pytest.param("::1", "::1", marks=IPV6),
        # As gRPC does: one end has a socket of IPv6, the other one of IPv4.
        pytest.param("::", "127.0.0.1", marks=IPV6),
    ],
)
def test_exactly_what_was_sent_both_ways(at, to):
    with listener(at) as server:
        received = BytesReceived([port_of(server)])
        assert received.total() == 0
        with connection(server, to) as (client, end):
            send(client, end, N)
            assert received.total() == N
            send(end, client, 2 * N)
            assert received.total() == 3 * N


def test_other_ports_are_not_counted():
    with (
        listener() as server,
        listener() as other,
        connection(server) as (client, end),
        connection(other) as (stranger, far),
    ):
        received = BytesReceived([port_of(server)])
        both = BytesReceived([port_of(server), port_of(other)])
        send(client, end, 5)
        send(stranger, far, N)
        send(far, stranger, N)
        assert received.total() == 5
        assert both.total() == 2 * N + 5


def test_a_connection_between_two_of_the_ports_is_counted_once():
    with listener() as server, socket.socket() as client:
        client.bind(("127.0.0.1", 0))
        client.connect(server.getsockname())
        end, _ = server.accept()
        with end:
            received = BytesReceived([port_of(server), port_of(client)])
            send(client, end, N)
            assert received.total() == N


def test_more_connections_than_one_answer_of_the_kernel_holds():
    with listener() as server, contextlib.ExitStack() as stack:
        received = BytesReceived([port_of(server)])
        ends = [stack.enter_context(connection(server)) for _ in range(150)]
        for i, (client, end) in enumerate(ends):
            send(client, end, 1000 + i)
        assert received.total() == sum(1000 + i for i in range(150))


PROGRAM = """
import socket, sys
port = int(sys.argv[1])
if port:
    other = socket.create_connection(("127.0.0.1", port), timeout=20)
else:
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(20)
    print(server.getsockname()[1], flush=True)
    other, _ = server.accept()
    other.settimeout(20)
for line in sys.stdin:
    what, count = line.split()
    left = int(count)
    if what == "send":
        other.sendall(bytes(left))
    while what == "read" and left:
        left -= len(other.recv(min(left, 1 << 20)))
    print("done", flush=True)
"""


@contextlib.contextmanager
def process(port):
    """One end of a connection, as a process that does what it reads."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def tell(child, what):
    child.stdin.write(what + "\n")
    child.stdin.flush()


def test_between_two_other_processes():
    with process(0) as one:
        port = int(one.stdout.readline())
        with process(port) as other:
            received = BytesReceived([port])
            for sender, reader in ((one, other), (other, one)):
                before = received.total()
                tell(sender, f"send {N}")
                tell(reader, f"read {N}")
                assert sender.stdout.readline() == "done\n"
                assert reader.stdout.readline() == "done\n"
                assert received.total() - before == N


def test_a_connection_that_ends_is_no_smaller_count():
    with listener() as server:
        with connection(server) as (client, end):
            received = BytesReceived([port_of(server)])
            send(client, end, 10)
            assert received.total() == 10
            end.close()
            client.close()
            with connection(server) as (another, far):
                send(another, far, N)  # The total would be larger.
                with pytest.raises(RuntimeError, match="2 ended since"):
                    received.total()
        # What ended before a count began is none of its business.
        assert BytesReceived([port_of(server)]).total() == 0


def test_a_connection_that_came_and_went_between_two_counts():
    with listener() as server:
        received = BytesReceived([port_of(server)])
        with connection(server) as (client, end):
            send(client, end, N)
        with pytest.raises(RuntimeError, match="1 ended since.*start counting"):
            received.total()


def test_nobody_listens():
    # Held, so that no other test is given it.
    with (
        reserved_port() as port,
        pytest.raises(RuntimeError, match=f"listens at port {port}"),
    ):
        BytesReceived([port])


def test_a_kernel_that_does_not_tell(monkeypatch):
    """The real one refuses what it does not know. There is a fallback."""
    with listener() as server, connection(server) as (client, end):
        assert byte_counter([port_of(server)])[1] == "sockets"
        # A protocol for which no Linux has diagnostics.
        monkeypatch.setattr(
            "tf_convpar.machines._sockets.socket.IPPROTO_TCP",
            socket.IPPROTO_ESP,
        )
        with pytest.raises(OSError, match="modprobe tcp_diag"):
            BytesReceived([port_of(server)])
        total, counted_on = byte_counter([port_of(server)])
        assert counted_on == "loopback"
        before = total()
        send(client, end, N)
        assert total() - before >= N
