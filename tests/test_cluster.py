"""Reading TF_CONFIG, and what is refused before TensorFlow could hang."""

import concurrent.futures
import contextlib
import json
import re
import socket
import threading
import time

import grpc
import pytest
import tensorflow as tf

from tf_convpar.cluster import joining
from tf_convpar.cluster.joining import Cluster
from tf_convpar.cluster.joining import Task
from tf_convpar.cluster.joining import resolve
from tf_convpar.cluster.local_cluster import reserved_port

resolvers = tf.distribute.cluster_resolver
SPEC = {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"]}


def config(cluster=SPEC, **task):
    return json.dumps({"cluster": cluster, "task": task})


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def closed_port():
    """A port on which nothing listens, and nobody else will."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@pytest.mark.parametrize("value", [None, "", "  "])
def test_no_tf_config_is_no_cluster(monkeypatch, value):
    if value is not None:
        monkeypatch.setenv("TF_CONFIG", value)
    assert resolve() is None
    with pytest.raises(ValueError, match="Expected the environment variable"):
        resolve(required=True)


def test_tasks_are_the_chief_then_the_workers(monkeypatch):
    # Jobs in the other order, and an index in quotes, as launchers write it.
    spec = {"worker": SPEC["worker"], "chief": SPEC["chief"]}
    monkeypatch.setenv("TF_CONFIG", config(spec, type="worker", index="1"))
    cluster = resolve()
    assert [t.name for t in cluster.tasks] == [
        "/job:chief/task:0",
        "/job:worker/task:0",
        "/job:worker/task:1",
    ]
    assert cluster.chief == Task("chief", 0, "a:2222")
    assert cluster.task == Task("worker", 1, "c:2222")
    assert cluster.others == cluster.tasks[:2]
    assert not cluster.is_chief


def test_worker_0_is_the_chief_where_there_is_no_chief_job(monkeypatch):
    spec = {"worker": ["b:1", "c:1"]}
    monkeypatch.setenv("TF_CONFIG", config(spec, type="worker", index=0))
    cluster = resolve()
    assert cluster.is_chief
    assert cluster.others == (Task("worker", 1, "c:1"),)


def test_tf_config_of_each_task_reads_back(monkeypatch):
    cluster = Cluster(SPEC)
    for task in cluster.tasks:
        monkeypatch.setenv("TF_CONFIG", cluster.tf_config(task))
        assert resolve().task == task


def test_any_resolver(monkeypatch):
    spec = tf.train.ClusterSpec(SPEC)
    assert resolve(resolvers.SimpleClusterResolver(spec)).is_chief
    named = resolvers.SimpleClusterResolver(spec, task_type="worker", task_id=1)
    assert resolve(named).task == Task("worker", 1, "c:2222")
    assert (
        resolve(resolvers.SimpleClusterResolver(tf.train.ClusterSpec({})))
        is None
    )
    assert resolve(resolvers.TFConfigClusterResolver()) is None
    monkeypatch.setenv("TF_CONFIG", config(type="worker", index=0))
    assert resolve(resolvers.TFConfigClusterResolver()) == resolve()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{", "to be JSON"),
        ("[" * 10**5, "to be JSON"),
        ("[]", '"cluster" and "task"'),
        ("3", '"cluster" and "task"'),
        ("{}", '"cluster" and "task"'),
        (json.dumps({"task": {"type": "chief"}}), '"cluster" and "task"'),
        (json.dumps({"cluster": SPEC}), '"cluster" and "task"'),
        (json.dumps({"cluster": SPEC, "task": "chief"}), '"task" in TF_CONFIG'),
        (json.dumps({"cluster": SPEC, "task": {}}), '"task" in TF_CONFIG'),
        (config({}, type="chief"), "map jobs to lists"),
        (config(["a:1"], type="chief"), "map jobs to lists"),
        (config({"chief": []}, type="chief"), "at least one address"),
        (config({"chief": "a:1"}, type="chief"), "at least one address"),
        (config({"chief": {"0": "a:1"}}, type="chief"), "at least one address"),
        (config({"chief": ["a:1", "b:1"]}, type="chief"), "one task in job"),
        (config({"chief": ["a..b:1"]}, type="chief"), "Received: 'a..b:1'"),
        (config({"chief": [".a:1"]}, type="chief"), "Received: '.a:1'"),
        (config({"chief": ["a\0b:1"]}, type="chief"), "host:port"),
        (config({"chief": ["a" * 64 + ":1"]}, type="chief"), "1 to 63 bytes"),
        (config({"chief": ["ü" * 60 + ".b:1"]}, type="chief"), "1 to 63 bytes"),
        (config({"chief": ["a"]}, type="chief"), "'a'"),
        (config({"chief": [":1"]}, type="chief"), "':1'"),
        (config({"chief": [5]}, type="chief"), "Received: 5"),
        (config({"chief": ["-oX=y:1"]}, type="chief"), "Received: '-oX"),
        (config({"chief": ["a:b"]}, type="chief"), "'a:b'"),
        (config({"chief": ["a:0"]}, type="chief"), "'a:0'"),
        (config({"chief": ["a:65536"]}, type="chief"), "'a:65536'"),
        (config({"chief": ["a:²"]}, type="chief"), "host:port"),
        (config({"chief": ["grpc://a:1"]}, type="chief"), "no scheme"),
        (config({"chief": ["me@a:1"]}, type="chief"), "'me@a:1'"),
        (config({"chief": ["::1:1"]}, type="chief"), "[host]:port"),
        (config({"worker": ["a:1", "a:1"]}, type="worker"), "more than once"),
        (
            config({"chief": ["localhost:1"], "worker": ["b:1"]}, type="chief"),
            "address of the chief",
        ),
        (
            config({"chief": ["0.0.0.0:1"], "worker": ["b:1"]}, type="chief"),
            "0.0.0.0:1, which on b:1",
        ),
        (
            config(
                {"chief": ["a:1"], "worker": ["localhost:2", "b:1"]},
                type="chief",
            ),
            "address of a worker",
        ),
        (config({**SPEC, "ps": ["d:1"]}, type="chief"), "parameter server"),
        (config({**SPEC, "evaluator": ["d:1"]}, type="chief"), "evaluation"),
        (config({"master": ["d:1"]}, type="master"), "old name of 'chief'"),
        (config({"gpu": ["d:1"]}, type="gpu"), "job 'gpu'"),
        (config(type="evaluator", index=0), "Received: 'evaluator'"),
        (config(type=["chief"], index=0), "Received: ['chief']"),
        (config(type="worker", index=2), "from 0 to 1"),
        (config(type="worker", index=-1), "Received: -1"),
        (config(type="worker", index=True), "Received: True"),
        (config(type="worker", index=None), "Received: None"),
        (config(type="worker", index="one"), "Received: 'one'"),
    ],
)
def test_malformed_tf_config(monkeypatch, text, found):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match=re.escape(found)) as error:
        resolve()
    assert "Expected" in str(error.value)
    assert "Received" in str(error.value)


def test_names_of_hosts():
    for host in ("a" * 63 + ".b", "a.b.", "münchen.example", "10.0.0.1", "a_b"):
        assert Cluster({"chief": [f"{host}:1"]}).chief.host == host


def test_one_machine_may_call_itself_as_it_likes():
    for worker in ("localhost:2", "a:2", "0.0.0.0:2"):
        Cluster({"chief": ["a:1"], "worker": [worker]})


def test_ipv6_address():
    assert Cluster({"chief": ["[::1]:2222"]}).chief.port == 2222


def test_unreachable_tasks_are_named_in_bounded_time(listener, closed_port):
    silent = listener.getsockname()[1]
    tasks = [
        Task("worker", 0, f"127.0.0.1:{closed_port}"),
        Task("worker", 1, f"127.0.0.1:{silent}"),
        Task("worker", 2, "no-such-host.invalid:2222"),
    ]
    start = time.monotonic()
    with pytest.raises(TimeoutError) as error:
        joining.wait_for(tasks, timeout_s=1.5)
    assert time.monotonic() - start < 10
    text = str(error.value)
    assert "within 1.5 s" in text
    assert f"/job:worker/task:0 at 127.0.0.1:{closed_port}: conn" in text
    assert f"/job:worker/task:1 at 127.0.0.1:{silent}: something" in text
    assert "'no-such-host.invalid' is not known" in text
    assert "convpar worker" in text


@pytest.fixture
def silent_port():
    """A port where nobody is told anything, as behind a firewall."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            own = stack.enter_context(socket.socket())
            own.setblocking(False)
            own.connect_ex(full.getsockname())
        yield full.getsockname()[1]


def test_many_silent_machines_take_as_long_as_one(silent_port):
    tasks = [Task("worker", i, f"127.0.0.1:{silent_port}") for i in range(15)]
    begin = time.monotonic()
    found = joining.ask(tasks, timeout_s=1.2, patient=False)
    assert time.monotonic() - begin < 2.4
    assert len(found) == 15
    assert {*found.values()} == {
        "no reply from that machine: off, or behind a firewall"
    }


def test_a_server_of_names_that_is_silent_is_not_waited_for(
    silent_port, monkeypatch
):
    """It is asked for five seconds and more, by the system."""
    over = threading.Event()

    def ask_for_names(*args, **kwargs):
        over.wait(30)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", ask_for_names)
    task = Task("worker", 0, f"127.0.0.1:{silent_port}")
    begin = time.monotonic()
    found = joining.ask([task], timeout_s=1.2, patient=False)
    assert time.monotonic() - begin < 2.4
    assert "nor about its name, '127.0.0.1'" in found[task]
    over.set()


@pytest.mark.parametrize("reply", [b"", b"\xff", b"\x0a\x00"])
def test_a_server_that_answers_something_else(reply):
    """An empty message, none, or one of a device without a name."""

    class Anything(grpc.GenericRpcHandler):
        def service(self, details):
            return grpc.unary_unary_rpc_method_handler(lambda *_: reply)

    pool = concurrent.futures.ThreadPoolExecutor(1)
    server = grpc.server(pool, [Anything()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    task = Task("worker", 0, f"127.0.0.1:{port}")
    try:
        with (
            reserved_port() as own,
            pytest.raises(TimeoutError, match="Received no answer from 1"),
        ):
            spec = {"chief": [f"127.0.0.1:{own}"], "worker": [task.address]}
            joining.connect(Cluster(spec), timeout_s=5.0)
        found = joining.ask([task], timeout_s=5.0)[task]
        assert "answers there" in found
    finally:
        server.stop(None).wait()


def test_port_in_use(listener):
    port = listener.getsockname()[1]
    with pytest.raises(OSError, match=f"Received {port}, which process"):
        joining.check_port_free(f"somewhere:{port}")


def test_free_port(closed_port):
    # A connection that was just closed keeps the port from a naive bind.
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = server.accept()
            accepted.close()
    joining.check_port_free(f"somewhere:{port}")


def test_no_more_workers_are_waited_for_than_there_are():
    cluster = Cluster(SPEC)
    with pytest.raises(ValueError, match=r"from 0 to 2, the workers.*: 3"):
        joining.connect(cluster, timeout_s=0.1, fewest=3)


def test_only_the_chief_may_connect():
    with pytest.raises(ValueError, match="/job:worker/task:1 at c:2222") as e:
        joining.connect(Cluster(SPEC, "worker", 1))
    assert "convpar worker" in str(e.value)
