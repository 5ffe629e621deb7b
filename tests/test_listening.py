"""Who can reach a task's port: real sockets, real workers, a real kernel."""

import ipaddress
import json
import re
import socket
import sys

import psutil
import pytest
from processes import CONVPAR
from processes import kill_tree
from processes import read_until
from processes import start

from tf_convpar.strategy import listening
from tf_convpar.strategy.spec import Task
from tf_convpar.strategy.spec import is_loopback

# Seconds in which a connection on one machine is made, if it may be.
PATIENCE_S = 1.0
CHIEF = """
import tf_convpar as convpar
convpar.ConvParallelStrategy()
print("connected", flush=True)
input()
"""


def reached(host, port):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as own:
        own.settimeout(PATIENCE_S)
        try:
            own.connect((host, port))
        except TimeoutError:
            return False
        return True


def free_port():
    with socket.socket() as own:
        own.bind(("", 0))
        return own.getsockname()[1]


def outside():
    """An address of this machine that others could have, if it has any."""
    for interface in psutil.net_if_addrs().values():
        for found in interface:
            loopback = found.address.startswith("127.")
            if found.family == socket.AF_INET and not loopback:
                return found.address
    pytest.skip("this machine is in no network")


@pytest.fixture
def port():
    # As gRPC does: of both kinds of addresses.
    with socket.create_server(
        ("::", 0), family=socket.AF_INET6, dualstack_ipv6=True
    ) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("nets", "hosts"),
    [
        (["127.0.0.2/32"], {"127.0.0.2"}),
        (["10.1.0.0/16", "127.0.0.0/31"], {"127.0.0.1"}),
        (["127.0.0.0/8", "::1/128"], {"127.0.0.1", "127.0.0.2", "::1"}),
        (["::1/128"], {"::1"}),
        (["::2/128", "2001:db8::/33"], set()),
        (["0.0.0.0/0"], {"127.0.0.1", "127.0.0.2"}),
        (["::/0"], {"::1"}),
        ([], set()),
    ],
)
def test_what_was_sent_elsewhere_is_dropped(port, nets, hosts):
    every = ("127.0.0.1", "127.0.0.2", "::1")
    assert all(reached(host, port) for host in every)
    doors = [listening.Door(ipaddress.ip_network(net)) for net in nets]
    listening.restrict(port, doors)
    assert {host for host in every if reached(host, port)} == hosts


@pytest.mark.parametrize(
    ("others", "taken"),
    [
        ((), True),
        ((0,), True),
        ((7, 0), True),
        ((0, 7), True),
        ((7,), False),
        ((7, 8, 9), False),
    ],
)
def test_what_comes_by_another_interface_is_dropped(port, others, taken):
    """Numbers are those of interfaces after loopback, by which it all comes."""
    here = socket.if_nametoindex("lo")
    numbers = tuple(here + other for other in others)
    net = ipaddress.ip_network("127.0.0.2/32")
    # A door that comes first, and one that follows, change nothing.
    doors = [
        listening.Door(ipaddress.ip_network("127.0.0.1/32"), (here + 7,)),
        listening.Door(net, numbers),
        listening.Door(ipaddress.ip_network("127.0.0.3/32"), (here,)),
    ]
    listening.restrict(port, doors)
    assert reached("127.0.0.2", port) is taken
    assert not reached("127.0.0.1", port)
    assert reached("127.0.0.3", port)


def test_an_address_is_reached_by_the_interface_that_has_it():
    address = outside()
    (name,) = (
        name.partition(":")[0]
        for name, found in psutil.net_if_addrs().items()
        if address in [entry.address for entry in found]
    )
    task = Task("worker", 0, f"{address}:2222")
    numbers = {socket.if_nametoindex(n) for n in ("lo", name)}
    *loopback, door = listening.wanted(task, address)
    assert str(door.net) == f"{address}/32"
    assert {*door.interfaces} == numbers
    assert loopback == [*listening.LOOPBACK]
    # That of loopback itself is there for all, as is one that routers know.
    *_, door = listening.wanted(task, "127.0.0.1")
    assert door.interfaces == ()


def test_nobody_listens():
    with pytest.raises(OSError, match="this process to listen at port"):
        listening.restrict(free_port(), listening.LOOPBACK)


def test_tasks_at_localhost_are_reached_from_here_only():
    """Chief and worker; with an address, from there as well."""
    other, ports = outside(), [free_port(), free_port()]
    cluster = {
        "chief": [f"localhost:{ports[0]}"],
        "worker": [f"localhost:{ports[1]}"],
    }

    def config(job):
        task = {"type": job, "index": 0}
        return json.dumps({"cluster": cluster, "task": task})

    for listen, expected in ((None, False), (other, True)):
        more = {"CONVPAR_LISTEN": listen} if listen else {}
        worker = start([*CONVPAR, "worker"], TF_CONFIG=config("worker"), **more)
        chief = start(
            [sys.executable, "-c", CHIEF], TF_CONFIG=config("chief"), **more
        )
        try:
            read_until(worker, "Ready")
            read_until(chief, "connected")
            for port in ports:
                assert reached("127.0.0.1", port)
                assert reached(other, port) is expected
        finally:
            kill_tree(chief)
            kill_tree(worker)


@pytest.mark.parametrize(
    ("address", "match"),
    [
        ("192.0.2.77", "an address of this machine.*192.0.2.77.*it has 127"),
        ("no.such.host.invalid", "or its name. Received 'no.such"),
        ("a..b", "or its name. Received 'a..b': no name of a machine"),
    ],
)
def test_addresses_of_others_are_refused(address, match):
    config = {
        "cluster": {
            "chief": [f"localhost:{free_port()}"],
            "worker": [f"localhost:{free_port()}"],
        },
        "task": {"type": "worker", "index": 0},
    }
    line = [*CONVPAR, "worker", "--listen", address]
    worker = start(line, TF_CONFIG=json.dumps(config))
    try:
        output, _ = worker.communicate(timeout=60)
        assert worker.returncode == 2
        assert "Traceback" not in output
        assert re.search(match, output), output
    finally:
        kill_tree(worker)


def test_names_that_only_begin_as_localhost():
    here = ["localhost:1", "127.0.0.1:22", "127.1:22", "[::1]:5"]
    assert all(map(is_loopback, here))
    there = ["localhost.example.org:1", "12.7.0.1:2", "[::2]:5"]
    assert not any(map(is_loopback, there))
