"""`convpar launch --restarts`: who ends or hangs is started again."""

import os
import signal
import sys
import time

import pytest
from processes import kill_tree
from processes import read_until
from processes import start
from processes import wait_gone
from test_cli_launch import LAUNCH
from test_cli_launch import WAIT
from test_cli_launch import _worker_of
from test_cli_launch import descendants

from tf_convpar.cli._restarts import Restarted
from tf_convpar.cli._restarts import watch
from tf_convpar.cluster import health
from tf_convpar.cluster.local_cluster import reserved_port
from tf_convpar.cluster.process import Process
from tf_convpar.cluster.spec import Task


@pytest.mark.slow
def test_worker_that_hangs_or_dies_is_started_again_so_often(program):
    launcher = start([*LAUNCH, "-n", "2", "--restarts", "1", program(WAIT)])
    try:
        read_until(launcher, "[worker 0] Ready")
        time.sleep(2.5)  # It has answered.
        hung = _worker_of(launcher)
        begin = time.monotonic()
        os.kill(hung, signal.SIGSTOP)
        read_until(launcher, "worker 0 has not answered for ")
        # Questions come every second.
        assert time.monotonic() - begin < 5.0 + 5.0
        output = read_until(launcher, "[worker 0] Ready")
        assert "worker 0 ended with signal SIGKILL; starting it" in output
        other = _worker_of(launcher)
        assert other != hung
        assert not wait_gone([hung])
        os.kill(other, signal.SIGKILL)
        read_until(launcher, "it is not started again after 1 times")
        pids = descendants(launcher)
        launcher.send_signal(signal.SIGINT)
        output, _ = launcher.communicate(timeout=15)
        # The program went on all the time.
        assert "[chief] got SIGINT" in output
        assert not wait_gone(pids)
    finally:
        kill_tree(launcher)


@pytest.mark.slow
def test_killed_program_is_started_again_with_its_workers(program):
    launcher = start([*LAUNCH, "-n", "2", "--restarts", "1", program(WAIT)])
    try:
        read_until(launcher, "[worker 0] Ready")
        before = descendants(launcher)
        for times in (1, 2):
            worker = _worker_of(launcher)
            (chief,) = {*descendants(launcher)} - {worker}
            os.kill(chief, signal.SIGKILL)
            if times == 1:
                read_until(launcher, "ended with signal SIGKILL; starting it")
                read_until(launcher, "[worker 0] Ready")
        output, _ = launcher.communicate(timeout=15)
        assert launcher.returncode == 128 + signal.SIGKILL
        assert not wait_gone([*before, worker, chief])
        assert not {*before} & {worker, chief}
    finally:
        kill_tree(launcher)


def test_program_that_was_told_to_end_is_not_started_again(program):
    text = "import signal; print('here'); signal.pause()"
    launcher = start([*LAUNCH, "-n", "1", "--restarts", "1", program(text)])
    try:
        read_until(launcher, "[chief] here")
        launcher.terminate()
        output, _ = launcher.communicate(timeout=15)
        assert launcher.returncode == 128 + signal.SIGTERM
        assert "again" not in output
    finally:
        kill_tree(launcher)


# Answers as a worker does, until it is silent; then it computes for a while.
BUSY = """
import concurrent.futures, signal, sys, threading, time, grpc
from grpc import GenericRpcHandler, unary_unary_rpc_method_handler

silent = False
# One device, by its name.
name = b"/job:worker/replica:0/task:0/device:CPU:0"
device = bytes([0x0a, len(name)]) + name

def status(request, context):
    if silent:
        threading.Event().wait()  # Without a moment's work.
    return bytes([0x0a, len(device)]) + device

class Status(GenericRpcHandler):
    def service(self, details):
        return unary_unary_rpc_method_handler(status)

pool = concurrent.futures.ThreadPoolExecutor(9)
server = grpc.server(pool, [Status()])
server.add_insecure_port("localhost:" + sys.argv[1])
server.start()
print("answers", flush=True)
time.sleep(1.5)
silent = True
print("silent", flush=True)
end = time.monotonic() + 3.0
while time.monotonic() < end:
    pass
print("idle", flush=True)
signal.pause()
"""


def test_silent_worker_is_ended_once_it_is_idle(monkeypatch, capsys):
    """A busy one that answers nobody does not hang."""
    # So that it takes seconds. To ask more often than every second takes as
    # much of a slow processor as counts as work.
    monkeypatch.setattr(health, "_LEAST_S", 1.0)
    with (
        reserved_port() as port,
        Process([sys.executable, "-c", BUSY, str(port)]) as process,
    ):
        while "answers" not in process.output:
            time.sleep(0.05)
        name, address = "worker 0", Task("worker", 0, f"localhost:{port}")
        task = Restarted(process, None, 0)
        with watch(
            {name: task}, {name: address}, lambda worker: process.worked()
        ):
            process.wait(timeout_s=60.0)
        assert process.returncode == -signal.SIGKILL
        # It was not ended while it computed.
        assert "idle" in process.output
        assert "worker 0 has not answered for" in capsys.readouterr().err


def test_answers_decide_how_long_is_too_long():
    """Rare slow ones change nothing; where most are slow, it is longer."""
    assert health.deadline_s([]) == 5.0
    assert health.deadline_s([0.01] * 50 + [3.0] * 5) == 5.0
    slow = [1.0, 2.0, 3.0] * 20
    assert health.deadline_s(slow) == 2.0 + 10 * 1.0
