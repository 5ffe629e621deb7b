"""`convpar launch` with real programs: output, exit codes, and no leftovers."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import types

import psutil
import pytest
from processes import CONVPAR
from processes import kill_tree
from processes import read_until
from processes import run
from processes import start
from processes import wait_gone

from tf_convpar.cli._signals import Signals
from tf_convpar.cluster.local_cluster import reserved_port
from tf_convpar.cluster.process import Process
from tf_convpar.cluster.process import how
from tf_convpar.cluster.server import HEARTBEATS_S

LAUNCH = [*CONVPAR, "launch"]

# Waits for what the test does to it; says what it was told to do.
WAIT = """
import signal, sys

def stop(number, frame):
    print("got", signal.Signals(number).name)
    sys.exit(40 + number)

signal.signal(signal.SIGINT, stop)
signal.signal(signal.SIGTERM, stop)
print("waiting")
signal.alarm(60)  # Ends it, and not well, where nobody else does.
signal.pause()
"""

TRAIN = """
import json, os, sys
print("args", sys.argv[1:])
from tf_convpar.cluster import joining as lib
lib.connect(lib.resolve())
import tensorflow as tf
for device in tf.config.list_logical_devices():
    with tf.device(device.name):
        print(tf.square(3.0).device)
sys.stdout.flush()
os._exit(7)
"""


SSH = """
import os, signal, subprocess, sys

with open(LOG, "a") as log:
    print(*sys.argv[1:7], file=log)
command = subprocess.Popen(["sh", "-c", sys.argv[7]])

def end(number, frame):
    os.kill(command.pid, signal.SIGHUP)
    os._exit(255)

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, end)
code = command.wait()
sys.exit(code if code >= 0 else 255)
"""


@pytest.fixture
def ssh(tmp_path):
    """A stand-in for ssh: notes its arguments, runs the command here.

    As ssh, it hands no signal on, and the command ends with it.
    """
    fake = tmp_path / "bin" / "ssh"
    fake.parent.mkdir()
    log = tmp_path / "ssh.log"
    fake.write_text(f"#!{sys.executable} -IS\nLOG = {str(log)!r}\n{SSH}")
    fake.chmod(0o755)
    return {"PATH": f"{fake.parent}{os.pathsep}{os.environ['PATH']}"}, log


@pytest.fixture
def hosts():
    with reserved_port() as chief, reserved_port() as worker:
        yield f"localhost:{chief},localhost:{worker}"


def descendants(process):
    return [
        child.pid
        for child in psutil.Process(process.pid).children(recursive=True)
    ]


def test_trains_on_all_tasks(program):
    code, output = run(
        [*LAUNCH, "-n", "3", program(TRAIN), "-n", "--epochs=5", "a b"]
    )
    assert code == 7, output
    assert "[chief] args ['-n', '--epochs=5', 'a b']" in output
    for task in ("chief/replica:0/task:0", *_workers(2)):
        assert f"[chief] /job:{task}/device:CPU:0" in output
    assert "[worker 1] Ready: /job:worker/task:1" in output
    assert re.search(r"^\[(chief|worker \d)\] ", output, re.MULTILINE)
    assert "\033" not in output
    assert "ended with" not in output


def _workers(count):
    return [f"worker/replica:0/task:{index}" for index in range(count)]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("import os; os.kill(os.getpid(), 11)", 139),
        ("import os; os.kill(os.getpid(), 9)", 137),
    ],
)
def test_exit_code_is_the_program_s(program, text, code):
    assert run([*LAUNCH, "-n", "2", program(text)]) == (code, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_program(program, number):
    launcher = start([*LAUNCH, "-n", "2", program(WAIT)])
    try:
        read_until(launcher, "[chief] waiting")
        pids = descendants(launcher)
        launcher.send_signal(number)
        output, _ = launcher.communicate(timeout=10)
        assert f"[chief] got {number.name}" in output
        assert launcher.returncode == 40 + number
        assert not wait_gone(pids)
    finally:
        kill_tree(launcher)


def test_a_signal_before_there_is_a_program():
    """It waits for the program: nothing is left behind."""
    received = []
    kept = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        signals = Signals()
        os.kill(os.getpid(), signal.SIGTERM)
        assert received == []
        process = types.SimpleNamespace(signal=received.append)
        signals.forward_to(types.SimpleNamespace(process=process))
        assert received == [signal.SIGTERM]
        os.kill(os.getpid(), signal.SIGINT)
        assert received == [signal.SIGTERM, signal.SIGINT]
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def test_lost_worker_ends_everything(program):
    launcher = start([*LAUNCH, "-n", "3", program(WAIT)])
    try:
        read_until(launcher, "[chief] waiting")
        pids = descendants(launcher)
        worker = next(
            pid for pid in pids if "worker" in psutil.Process(pid).cmdline()
        )
        os.kill(worker, signal.SIGKILL)
        output, _ = launcher.communicate(timeout=15)
        assert re.search(r"worker \d ended with signal SIGKILL before", output)
        assert "[chief] got SIGTERM" in output
        assert launcher.returncode == 1
        assert not wait_gone(pids)
    finally:
        kill_tree(launcher)


def test_every_signal_has_a_name_or_a_number(program):
    """Real-time signals but for the first and the last have no name."""
    number = signal.SIGRTMIN + 3
    launcher = start([*LAUNCH, "-n", "2", program(WAIT)])
    try:
        read_until(launcher, "[chief] waiting")
        os.kill(_worker_of(launcher), number)
        output, _ = launcher.communicate(timeout=15)
        assert f"worker 0 ended with signal {number} before" in output
        assert "Traceback" not in output
    finally:
        kill_tree(launcher)
    assert how(-signal.SIGKILL) == "signal SIGKILL"
    assert [how(n) for n in (0, 3)] == ["exit code 0", "exit code 3"]
    for number in range(1, signal.NSIG):
        assert how(-number).startswith("signal ")


def _worker_of(launcher, timeout_s=30.0):
    """The process of its worker, which may not have begun yet over ssh."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for pid in descendants(launcher):
            with contextlib.suppress(psutil.NoSuchProcess):
                if "worker" in psutil.Process(pid).cmdline():
                    return pid
        time.sleep(0.02)
    raise AssertionError("no worker was started")


def test_killed_launcher_leaves_nothing(program):
    launcher = start([*LAUNCH, "-n", "3", program(WAIT)])
    try:
        read_until(launcher, "[chief] waiting")
        # So that all three have begun: only then is each tied to us.
        time.sleep(0.5)
        pids = descendants(launcher)
        assert len(pids) == 3
        launcher.kill()
        launcher.wait()
        assert not wait_gone(pids)
    finally:
        kill_tree(launcher)


def test_program_s_own_children_end_with_it(program):
    script = program(
        "import subprocess; print(subprocess.Popen(['sleep', '60']).pid)"
    )
    code, output = run([*LAUNCH, "-n", "1", script])
    assert code == 0
    assert not wait_gone([int(output.removeprefix("[chief] "))])


def test_reader_that_goes_away(program):
    script = program("while True: print('line')")
    command = shlex.join(map(str, [*LAUNCH, "-n", "1", script]))
    code, output = run(["bash", "-c", f"{command} | head -2; exit $PIPESTATUS"])
    assert output == "[chief] line\n" * 2
    assert code == 128 + signal.SIGTERM


def test_commands_for_other_machines():
    arguments = ["--hosts", "a:2222,b:2223", "--cwd=my dir", "train.py", "a b"]
    code, output = run([*LAUNCH, "--json", *arguments])
    assert code == 0
    worker, chief = json.loads(output)
    assert (worker["host"], chief["host"]) == ("b", "a")
    assert worker["command"].startswith("cd 'my dir' && env TF_CONFIG=")
    assert worker["command"].endswith(" python3 -m tf_convpar_cli worker")
    assert chief["command"].endswith(" python3 train.py 'a b'")
    config = shlex.split(worker["command"])[4].removeprefix("TF_CONFIG=")
    assert json.loads(config) == {
        "cluster": {"chief": ["a:2222"], "worker": ["b:2223"]},
        "task": {"type": "worker", "index": 0},
    }
    code, output = run([*LAUNCH, "--ssh", "--dry-run", *arguments])
    assert code == 0
    assert f"# worker 0, on b:\n{worker['command']}\n" in output
    assert f"# chief, on a:\n{chief['command']}\n" in output


def test_over_ssh(program, ssh, hosts, tmp_path):
    changes, log = ssh
    code, output = run(
        [
            *(*LAUNCH, "--hosts", hosts, "--ssh", "--python", sys.executable),
            *("--cwd", tmp_path, program(TRAIN).name, "x"),
        ],
        **changes,
    )
    assert code == 7, output
    assert "[chief] args ['x']" in output
    assert "[worker 0] Ready: /job:worker/task:0" in output
    # Both start at once.
    assert sorted(log.read_text().splitlines()) == [
        f"-o ServerAliveInterval=5 {terminal} -o BatchMode=yes localhost"
        for terminal in ("-T", "-tt")
    ]


@pytest.mark.slow
def test_a_worker_ends_with_its_heartbeats():
    """Its end of a connection that was cut is silent, or closed."""
    code = (
        "from tf_convpar.cluster import server\n"
        "server.exit_without_heartbeats(2.0)\n"
        "print('up', flush=True)\n" + WAIT
    )
    line = [sys.executable, "-c", code]
    with (
        Process(line, stdin=subprocess.PIPE) as silent,
        Process(line, stdin=subprocess.PIPE) as closed,
    ):
        # However long they take to start, and longer than they may be silent.
        beats = 0
        while beats < 13:
            time.sleep(0.2)
            for process in (silent, closed):
                process.write("\n")
                assert process.returncode is None, process.output
            beats += "up" in silent.output and "up" in closed.output
        closed._popen.stdin.close()
        for process in (silent, closed):
            process.wait(timeout_s=10)
            assert "is gone; ending it" in process.output


@pytest.mark.slow
def test_workers_over_ssh_have_heartbeats(program, ssh, hosts):
    """They live on them: 15 s without any would end them."""
    changes, _ = ssh
    launcher = start(
        [
            *(*LAUNCH, "--hosts", hosts, "--ssh", "--python", sys.executable),
            program("import time; print('waiting', flush=True)\n" + WAIT),
        ],
        **changes,
    )
    try:
        read_until(launcher, "[chief] waiting")
        workers = []
        until = time.monotonic() + 10
        while not workers and time.monotonic() < until:
            every = psutil.Process(launcher.pid).children(recursive=True)
            wanted = ["-m", "tf_convpar_cli", "worker"]
            workers = [p for p in every if p.cmdline()[1:4] == wanted]
        (worker,) = workers
        assert "--heartbeats" in worker.cmdline()
        time.sleep(HEARTBEATS_S + 2)
        assert worker.is_running()
    finally:
        kill_tree(launcher)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_program_over_ssh(program, ssh, hosts, number):
    """And its exit code comes back."""
    changes, _ = ssh
    line = [
        *(*LAUNCH, "--hosts", hosts, "--ssh", "--python", sys.executable),
        program(WAIT.replace('print("waiting")', 'print("waiting", flush=1)')),
    ]
    launcher = start(line, **changes)
    try:
        early = read_until(launcher, "[chief] waiting")
        launcher.send_signal(number)
        output, _ = launcher.communicate(timeout=20)
        assert f"[chief] got {number.name}" in output
        assert launcher.returncode == 40 + number
        assert "convpar-process" not in early + output
    finally:
        kill_tree(launcher)


def test_terminated_launcher_over_ssh(program, ssh, hosts):
    changes, _ = ssh
    launcher = start(
        [
            *(*LAUNCH, "--hosts", hosts, "--ssh", "--python", sys.executable),
            program("import time; print('waiting', flush=True)\n" + WAIT),
        ],
        **changes,
    )
    try:
        read_until(launcher, "[chief] waiting")
        pids = descendants(launcher)
        launcher.terminate()
        launcher.wait(timeout=15)
        assert not wait_gone(pids)
    finally:
        kill_tree(launcher)


@pytest.mark.parametrize(
    ("arguments", "code", "found"),
    [
        (["x.py"], 2, "either -n or --hosts"),
        (["-n", "2", "--hosts", "a:1", "x.py"], 2, "either -n or --hosts"),
        (["-n", "0", "x.py"], 2, "x>=1"),
        (["-n", "2"], 2, "Missing argument 'PROGRAM'"),
        (["-n", "2", "--ssh", "x.py"], 2, "with --hosts only"),
        (["--hosts", "a,b:1", "x.py"], 2, "Received: 'a'"),
        (["--hosts", "a:1,a:1", "x.py"], 2, "more than once"),
        (["--hosts", "localhost:1,b:1", "x.py"], 2, "address of the chief"),
    ],
)
def test_refused(arguments, code, found):
    returned, output = run([*LAUNCH, *arguments])
    assert returned == code
    assert found in output
    assert "Traceback" not in output
