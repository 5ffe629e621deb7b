"""`convpar worker`: its one line, its end, and what it refuses."""

import signal
import socket
import time

import pytest
from processes import CONVPAR
from processes import kill_tree
from processes import read_until
from processes import run
from processes import start

from tf_convpar.cluster import joining
from tf_convpar.cluster.joining import Cluster
from tf_convpar.cluster.local_cluster import reserved_port


@pytest.fixture
def cluster():
    with reserved_port() as chief, reserved_port() as worker:
        yield Cluster(
            {
                "chief": [f"localhost:{chief}"],
                "worker": [f"localhost:{worker}"],
            }
        )


def test_life_of_a_worker(cluster):
    (task,) = cluster.others
    config = cluster.tf_config(task)
    worker = start([*CONVPAR, "worker", "--threads=1"], TF_CONFIG=config)
    try:
        output = read_until(worker, "Ready: ")
        assert f"Ready: {task} serves CPU:0" in output
        devices = joining.wait_for([task], timeout_s=5)[task]
        assert devices[0].name == "/job:worker/replica:0/task:0/device:CPU:0"
        assert devices[0].type == "CPU"
        assert devices[0].memory_bytes > 0

        # Somebody else at its port, or at its address, is told so.
        code, refusal = run([*CONVPAR, "worker"], TF_CONFIG=config)
        assert code == 2
        assert f"Received {task.port}, which process {worker.pid} " in refusal
        assert "Traceback" not in refusal
        stranger = joining.Task("worker", 1, task.address)
        with pytest.raises(TimeoutError, match="/job:worker/task:0 answers"):
            joining.wait_for([stranger], timeout_s=5)

        # Stopped, it still accepts connections.
        worker.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(TimeoutError, match="or a stopped worker"):
            joining.wait_for([task], timeout_s=1)
        assert time.monotonic() - begin < 5
        worker.send_signal(signal.SIGCONT)

        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=30) == 0
        assert "Traceback" not in worker.stdout.read()
    finally:
        kill_tree(worker)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)]
)
def test_signals_while_it_starts(cluster, number, code):
    config = cluster.tf_config(cluster.others[0])
    worker = start([*CONVPAR, "worker"], TF_CONFIG=config)
    try:
        time.sleep(1.0)
        worker.send_signal(number)
        assert worker.wait(timeout=30) == code
        assert "Traceback" not in worker.stdout.read()
    finally:
        kill_tree(worker)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ("", "Expected the environment variable TF_CONFIG"),
        ("{", "Expected TF_CONFIG to be JSON"),
        (Cluster({"chief": ["a:1"]}).tf_config(), "makes it the chief"),
        (Cluster({"worker": ["a:1"]}).tf_config(), "makes it the chief"),
    ],
)
def test_refused(config, found):
    begin = time.monotonic()
    code, output = run([*CONVPAR, "worker"], TF_CONFIG=config)
    assert code == 2
    assert output.startswith("Error: ")
    assert found in output
    assert "Traceback" not in output
    # Before TensorFlow is imported.
    assert time.monotonic() - begin < 3


def test_port_of_another_program(cluster):
    (task,) = cluster.others
    with socket.create_server(("", task.port)):
        code, output = run(
            [*CONVPAR, "worker"], TF_CONFIG=cluster.tf_config(task)
        )
    assert code == 2
    assert (
        f"Error: Expected a free port for this task, at {task.address}"
        in output
    )
