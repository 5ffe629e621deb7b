"""Local workers serve, are restarted, and never outlive who started them."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import forks
import psutil
import pytest
from cases import slow
from processes import environment
from processes import kill_tree
from processes import read_until
from processes import start
from processes import wait_gone

from tf_convpar.cluster.local_cluster import local_workers
from tf_convpar.cluster.local_cluster import reserved_port
from tf_convpar.cluster.process import Process

JOIN = """
import os, socket, sys
import tf_convpar.cluster.joining as lib

cluster = lib.resolve()
with socket.create_server(("", cluster.chief.port)):
    try:
        lib.connect(cluster)
    except OSError as error:
        print("taken:", error.strerror)
lib.connect(cluster, timeout_s=30)
lib.connect(lib.resolve(), timeout_s=0.1)
import tensorflow as tf
print(len(tf.config.list_logical_devices()), "devices")
for index in range(2):
    with tf.device(f"/job:worker/task:{index}/device:CPU:0"):
        product = tf.function(lambda x: tf.matmul(x, x))(tf.ones((2, 2)))
        print(product.device, product.numpy().sum())
try:
    lib.connect(lib.Cluster({"worker": ("localhost:1", "localhost:2")}))
except RuntimeError as error:
    print("other:", error)
print(os.environ["TF_GRPC_DEFAULT_OPTIONS"])
sys.stdout.flush()
os._exit(0)
"""

USE = """
import os, sys
import tf_convpar.cluster.joining as lib

lib.connect(lib.resolve())
import tensorflow as tf
with tf.device("/job:worker/task:0/device:CPU:0"):
    print(tf.function(lambda x: tf.matmul(x, x))(tf.ones((2, 2))).numpy().sum())
sys.stdout.flush()
os._exit(0)
"""

HOLD = """
import signal
from tf_convpar.cluster.local_cluster import local_workers

with local_workers(2, wait=False) as local:
    print("pids", *[worker.pid for worker in local.workers], flush=True)
    signal.alarm(60)  # Ends it, and not well, where nobody else does.
    signal.pause()
"""


@pytest.fixture(scope="module")
def local():
    with local_workers(2, threads=1) as workers:
        yield workers


@pytest.mark.slow
def test_chief_joins_despite_a_proxy(local):
    # TensorFlow by itself would talk to the proxy, and wait for ever.
    config = {"TF_CONFIG": local.tf_config()}
    done = forks.run(
        ["-c", JOIN],
        env=environment(http_proxy="http://127.0.0.1:1", **config),
    )
    output = done.stdout
    assert done.returncode == 0, done.stderr
    assert "taken: Expected a free port" in output
    assert "3 devices" in output
    assert "/job:worker/replica:0/task:1/device:CPU:0 8.0" in output
    assert "other: Expected one cluster in the life of a process" in output
    assert "grpc.enable_http_proxy=0" in output


def test_workers_share_a_cluster_with_the_chief(local):
    config = json.loads(local.tf_config())
    assert config["task"] == {"type": "chief", "index": 0}
    assert len(config["cluster"]["worker"]) == 2
    assert json.loads(local.env()["TF_CONFIG"]) == config
    for worker in local.workers:
        assert worker.returncode is None
        assert "Ready: /job:worker/task:" in worker.output


def test_each_task_has_as_many_threads_as_its_own_machine(monkeypatch):
    """A worker with more cores than the chief's machine uses them."""
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "7")
    with local_workers(1) as local:
        monkeypatch.delenv("TF_NUM_INTEROP_THREADS")
        config = {"TF_CONFIG": local.tf_config()}
        done = forks.run(["-c", USE], env=environment(**config))
        assert done.stdout == "8.0\n", done.stderr
        names = [
            thread.joinpath("comm").read_text().strip()
            for thread in Path(f"/proc/{local.workers[0].pid}/task").iterdir()
        ]
    # Those that answer, those that compute for the chief, and few others.
    assert names.count("tf_Compute") >= 14


def test_restart(local):
    old = local.workers[1].pid
    local.restart(1)
    assert not psutil.pid_exists(old)
    assert local.workers[1].pid != old
    assert local.workers[1].returncode is None


def test_exception_leaves_no_worker():
    with (
        contextlib.suppress(KeyError),
        local_workers(2, wait=False) as local,
    ):
        pids = [worker.pid for worker in local.workers]
        os.kill(pids[0], signal.SIGSTOP)
        raise KeyError
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_worker_that_cannot_start_shows_why():
    with (
        pytest.raises(RuntimeError, match="exit code 2 from worker 0") as error,
        local_workers(1, threads=0),
    ):
        pass
    assert "Invalid value for '--threads'" in str(error.value)


def test_worker_that_is_late():
    with (
        pytest.raises(TimeoutError, match="within 0.2 s"),
        local_workers(1, timeout_s=0.2),
    ):
        pass


def test_negative_count():
    with pytest.raises(ValueError, match="Received: -1"), local_workers(-1):
        pass


@pytest.mark.parametrize("number", [slow(signal.SIGKILL), signal.SIGTERM])
def test_workers_die_with_their_parent(number):
    parent = start([sys.executable, "-c", HOLD])
    try:
        line = read_until(parent, "pids").splitlines()[-1]
        pids = [int(pid) for pid in line.split()[1:]]
        # A stopped process runs no code that could end it, so the kernel must.
        # That was arranged when the worker's own program has begun.
        while any(
            "parent_death.py" in a for a in psutil.Process(pids[0]).cmdline()
        ):
            time.sleep(0.01)
        os.kill(pids[0], signal.SIGSTOP)
        parent.send_signal(number)
        parent.wait()
        assert not wait_gone(pids)
    finally:
        kill_tree(parent)


def test_reserved_ports_are_given_to_nobody_else():
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(reserved_port()) for _ in range(50)]
        others = []
        for _ in range(200):
            other = stack.enter_context(socket.socket())
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("", 0))
            others.append(other.getsockname()[1])
        assert len(set(ports)) == 50
        assert not set(ports) & set(others)
        # But the task it is meant for can listen there.
        with socket.create_server(("", ports[0])):
            pass


def test_process_takes_its_children_along():
    script = "sleep 60 & echo $!; exit 3"
    with Process(["sh", "-c", script]) as process:
        assert process.wait(timeout_s=5) == 3
    assert not wait_gone([int(process.output)])


def test_what_is_left_of_a_group_is_killed_while_the_number_is_its_own(
    monkeypatch,
):
    """Once it is known how one ended, another may get its number."""
    states, real = [], os.killpg

    def killpg(number, sent):
        states.append(psutil.Process(number).status())
        real(number, sent)

    monkeypatch.setattr(os, "killpg", killpg)
    ended = []
    # It is only listened to: nobody asks whether it has ended. Its child does
    # not have its output.
    script = "sleep 60 > /dev/null 2>&1 & echo $!; exit 3"
    process = Process(["sh", "-c", script], on_end=ended.append)
    deadline = time.monotonic() + 10
    while not ended and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended == [3]
    assert not psutil.pid_exists(process.pid)
    assert not wait_gone([int(process.output)])
    # It is over: whoever has the number now is left alone.
    process.signal(signal.SIGKILL)
    process.kill()
    assert process.returncode == 3
    assert states == [psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("ask", [True, False])
def test_another_process_of_the_same_number_lives(ask):
    """Whether it was asked how it ended, or only listened to."""
    number = "/proc/sys/kernel/ns_last_pid"
    if not os.access(number, os.W_OK):
        pytest.skip("only root chooses numbers of processes")
    ended = []
    process = Process(["true"], on_end=ended.append)
    if ask:
        process.wait(timeout_s=10)
    while not ended:
        time.sleep(0.01)
    for _ in range(50):
        with open(number, "w") as file:
            file.write(str(process.pid - 1))
        other = start(["sleep", "60"])
        try:
            if other.pid == process.pid:
                process.signal(signal.SIGKILL)
                process.kill()
                time.sleep(0.1)
                assert process.returncode == 0
                assert other.poll() is None
                return
        finally:
            kill_tree(other)
    pytest.skip("others took the number")


def test_process_that_is_waited_for_too_long():
    with (
        Process(["sleep", "60"]) as process,
        pytest.raises(subprocess.TimeoutExpired),
    ):
        process.wait(timeout_s=0.1)
    assert process.returncode == -signal.SIGKILL


def test_process_that_is_not_there():
    with Process(["no-such-program"]) as process:
        assert process.wait(timeout_s=5) == 1
    assert process.output == "no-such-program: No such file or directory"
