"""Who can reach a task's port: real sockets, real workers, a real kernel."""

import concurrent.futures
import contextlib
import dataclasses
import ipaddress
import json
import re
import select
import socket
import subprocess
import sys
import threading
import time

import grpc
import psutil
import pytest
from processes import CONVPAR
from processes import kill_tree
from processes import read_until
from processes import start

from tf_convpar.cluster import listening
from tf_convpar.cluster.spec import Cluster
from tf_convpar.cluster.spec import Task
from tf_convpar.cluster.spec import is_loopback
from tf_convpar.cluster.status import ask

# Seconds in which a connection on one machine is made, if it may be.
PATIENCE_S = 0.5
EVERY = {"127.0.0.1", "127.0.0.2", "::1"}
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
    # Side by side: each that is not reached takes as long as it may.
    with concurrent.futures.ThreadPoolExecutor() as threads:
        found = threads.map(lambda host: reached(host, port), every)
        assert {h for h, yes in zip(every, found, strict=True) if yes} == hosts


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


def ended(client):
    """Whether the other side has ended a connection, whatever it sent."""
    try:
        while client.recv(4096):
            pass
        return True
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


@pytest.mark.parametrize(
    ("doors", "stay"),
    [
        ([("127.0.0.2/32", ())], {"127.0.0.2"}),
        ([("0.0.0.0/0", ()), ("::1/128", ())], EVERY),
        # Numbers are those of interfaces after loopback.
        ([("127.0.0.2/32", (0,)), ("127.0.0.1/32", (7,))], {"127.0.0.2"}),
        ([("127.0.0.1/32", (7, 0)), ("::1/128", (8, 7))], {"127.0.0.1"}),
        ([("::1/128", (7, 0))], {"::1"}),
        ([], set()),
    ],
)  # fmt: skip
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_what_came_before_by_another_way_is_ended(doors, stay, family):
    here = socket.if_nametoindex("lo")
    doors = [
        listening.Door(ipaddress.ip_network(net), tuple(here + n for n in ns))
        for net, ns in doors
    ]
    every = EVERY if family == socket.AF_INET6 else EVERY - {"::1"}
    anywhere = "::" if family == socket.AF_INET6 else ""
    dual = {"dualstack_ipv6": True} if family == socket.AF_INET6 else {}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            socket.create_server((anywhere, 0), family=family, **dual)
        )
        port = server.getsockname()[1]

        def connect(host):
            client = socket.create_connection((host, port), timeout=1.0)
            return stack.enter_context(client)

        clients, taken = {}, {}
        for host in every:
            clients[host] = connect(host)
            taken[host] = stack.enter_context(server.accept()[0])
        waiting = [connect(host) for host in every]
        listening.restrict(port, doors)
        # Nobody knows what of these has been sent, so all try again.
        assert all(map(ended, waiting))
        for host in every:
            clients[host].settimeout(0.2)
            assert ended(clients[host]) is (host not in stay), host
        # Those that stay work as before.
        for host in stay & every:
            taken[host].sendall(b"x")
            clients[host].settimeout(1.0)
            assert clients[host].recv(1) == b"x"


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


@contextlib.contextmanager
def both_tasks(**changes):
    """A worker and a chief at localhost, and when both are there their tasks.

    The context begins before they do: what waits for their ports is told them.
    """
    spec = {name: [f"localhost:{free_port()}"] for name in ("chief", "worker")}
    cluster = Cluster(spec)
    tasks = {task.job: task for task in cluster.tasks}

    def begin():
        for name, line, ready in (
            ("worker", [*CONVPAR, "worker"], "Ready"),
            ("chief", [sys.executable, "-c", CHIEF], "connected"),
        ):
            config = cluster.tf_config(tasks[name])
            process = start(
                line, stdin=subprocess.PIPE, TF_CONFIG=config, **changes
            )
            stack.callback(kill_tree, process)
            read_until(process, ready)

    with contextlib.ExitStack() as stack:
        yield tasks.values(), begin


@pytest.mark.slow
def test_tasks_are_reached_from_an_address_that_they_are_told():
    other = outside()
    with both_tasks(CONVPAR_LISTEN=other) as (tasks, begin):
        begin()
        for task in tasks:
            assert reached("127.0.0.1", task.port), task
            assert reached(other, task.port), task


class Stranger:
    """Tries a port at this machine's other address until it is let in."""

    def __init__(self, port):
        self._address, self._over = (outside(), port), threading.Event()
        self.held = []
        self._thread = threading.Thread(target=self._go)
        self._thread.start()

    def _go(self):
        while not self._over.is_set() and len(self.held) < 5:
            own = socket.socket()
            own.settimeout(0.5)
            try:
                own.connect(self._address)
                self.held.append(own)
            except OSError:
                own.close()
                time.sleep(2e-4)

    def asks(self, task):
        """What a task answers over one of these connections."""
        with socket.create_server(("127.0.0.1", 0)) as near:
            asked = dataclasses.replace(
                task, address=f"127.0.0.1:{near.getsockname()[1]}"
            )
            passing = threading.Thread(
                target=pass_on, args=(near, self.held[0]), daemon=True
            )
            passing.start()
            return ask([asked], timeout_s=2.0)[asked]

    def close(self):
        self._over.set()
        self._thread.join()
        for own in self.held:
            own.close()


def pass_on(near, far):
    """Passes on what one sends, and what comes back, until one closes."""
    own, _ = near.accept()
    with own, contextlib.suppress(OSError):
        while True:
            for ready in select.select([own, far], [], [])[0]:
                content = ready.recv(4096)
                if not content:
                    return
                (far if ready is own else own).sendall(content)


def test_tasks_at_localhost_are_reached_from_here_only():
    """And who came in while they started is shown out."""
    with both_tasks() as (tasks, begin), contextlib.ExitStack() as stack:
        strangers = {task: Stranger(task.port) for task in tasks}
        for stranger in strangers.values():
            stack.callback(stranger.close)
        begin()
        for task, stranger in strangers.items():
            assert stranger.held, f"nobody came in: nothing of {task} is tested"
            found = stranger.asks(task)
            assert isinstance(found, str), found
            for own in stranger.held:
                own.settimeout(1.0)
                assert ended(own), task
            assert not reached(outside(), task.port), task
            # And those who are welcome are answered.
            assert reached("127.0.0.1", task.port), task
            assert not isinstance(ask([task], 5.0)[task], str), task


SLOW = """
from tf_convpar.cluster import listening, server, spec
real = listening.restrict

def restrict(port, doors):
    print("listens", flush=True)
    input()
    real(port, doors)

listening.restrict = restrict
server.serve(spec.resolve(required=True))
"""


def test_a_worker_answers_nobody_before_it_is_closed():
    spec = {name: [f"localhost:{free_port()}"] for name in ("chief", "worker")}
    (task,) = Cluster(spec).others
    worker = start(
        [sys.executable, "-c", SLOW],
        stdin=subprocess.PIPE,
        TF_CONFIG=Cluster(spec).tf_config(task),
    )
    try:
        read_until(worker, "listens")
        assert listens(task.port)
        assert isinstance(ask([task], timeout_s=1.5)[task], str)
        worker.stdin.write("\n")
        worker.stdin.flush()
        read_until(worker, "Ready")
        assert not isinstance(ask([task], timeout_s=5.0)[task], str)
    finally:
        kill_tree(worker)


def test_a_chief_is_closed_before_it_has_found_its_workers():
    """One of them says what it is, and no more."""
    name = b"/job:worker/replica:0/task:0/device:CPU:0"
    device = b"\x0a" + bytes([len(name)]) + name + b"\x12\x03CPU"
    status = b"\x0a" + bytes([len(device)]) + device
    over = threading.Event()

    class Worker(grpc.GenericRpcHandler):
        def service(self, details):
            def answer(request, context):
                if not details.method.endswith("/GetStatus"):
                    over.wait(60)
                return status

            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(8), [Worker()])
    worker = server.add_insecure_port("127.0.0.1:0")
    server.start()
    port = free_port()
    cluster = Cluster(
        {"chief": [f"localhost:{port}"], "worker": [f"localhost:{worker}"]}
    )
    chief = start([sys.executable, "-c", CHIEF], TF_CONFIG=cluster.tf_config())
    try:
        deadline = time.monotonic() + 60
        while not listens(port) and time.monotonic() < deadline:
            assert chief.poll() is None, chief.stdout.read()
            time.sleep(0.05)
        time.sleep(1.0)
        assert reached("127.0.0.1", port)
        assert not reached(outside(), port)
        # It waits for the worker, and has not gone on.
        assert chief.poll() is None
    finally:
        kill_tree(chief)
        over.set()
        server.stop(None).wait()


def listens(port):
    with socket.socket() as own:
        return own.connect_ex(("127.0.0.1", port)) == 0


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
    here = [
        *("localhost:1", "127.0.0.1:22", "127.1:22", "[::1]:5"),
        *("LOCALHOST:1", "localhost.localdomain:1", "[0:0:0:0:0:0:0:1]:5"),
    ]
    assert all(map(is_loopback, here))
    there = [
        *("localhost.example.org:1", "12.7.0.1:2", "[::2]:5", "0.0.0.0:1"),
        "127.example.org:1",
    ]
    assert not any(map(is_loopback, there))
