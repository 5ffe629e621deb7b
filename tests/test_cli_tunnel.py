"""`convpar launch --tunnel`: what ssh is told, and with real sshd what it does.

The stand-in for ssh runs commands here, so all tasks are at this machine's
localhost anyway. What it does as ssh would is to carry each task's port to a
socket, where this machine asks the task.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import psutil
import pytest
from processes import CONVPAR
from processes import ROOT
from processes import kill_tree
from processes import read_until
from processes import run
from processes import start
from processes import wait_gone

from tf_convpar.cluster.local_cluster import reserved_port
from tf_convpar.cluster.spec import Task
from tf_convpar.cluster.status import ask

LAUNCH = [*CONVPAR, "launch"]
SSH = f"""#!{sys.executable}
import json, os, shutil, socket, subprocess, sys, threading

def carry(source, target):
    while data := source.recv(65536):
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)

def forward(path, host, port):
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    while True:
        near, _ = server.accept()
        try:
            far = socket.create_connection((host, int(port)))
        except OSError:
            near.close()
            continue
        for pair in ((near, far), (far, near)):
            threading.Thread(target=carry, args=pair, daemon=True).start()

*options, host, command = sys.argv[1:]
with open(os.environ["SSH_LOG"], "a") as log:
    log.write(json.dumps([host, *options]) + "\\n")
for flag, value in zip(options, options[1:]):
    if flag == "-L":
        threading.Thread(
            target=forward, args=value.split(":"), daemon=True
        ).start()
sys.exit(subprocess.run(["sh", "-c", command]).returncode)
"""
TRAIN = """
from tf_convpar.cluster import joining as lib
lib.connect(lib.resolve())
import os
import tensorflow as tf
for device in tf.config.list_logical_devices():
    print(device.name, flush=True)
os._exit(7)
"""
WAIT = "import signal; print('waiting', flush=True); signal.pause()"
CAN_MAKE_MACHINES = os.geteuid() == 0 and all(
    shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    for tool in ("ip", "sshd", "tcpdump", "wg", "wireguard-go")
)


@pytest.fixture
def ssh(tmp_path):
    fake = tmp_path / "bin" / "ssh"
    fake.parent.mkdir()
    fake.write_text(SSH)
    fake.chmod(0o755)
    log = tmp_path / "ssh.log"
    path = f"{fake.parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "SSH_LOG": str(log)}, log


@pytest.fixture
def launch(tmp_path):
    """The command, for a program on two machines that are both this one."""
    with reserved_port() as chief, reserved_port() as worker:

        def line(text):
            program = tmp_path / "program.py"
            program.write_text(text)
            hosts = f"localhost:{chief},127.0.0.1:{worker}"
            return [
                *(*LAUNCH, "--hosts", hosts, "--ssh", "--tunnel"),
                *("--python", sys.executable, program),
            ]

        yield line, chief, worker


def test_every_task_is_at_localhost_of_every_machine(launch, ssh):
    line, chief, worker = launch
    changes, log = ssh
    code, output = run(line(TRAIN), **changes)
    assert code == 7, output
    assert f"Ready: /job:worker/task:0 at localhost:{worker}" in output
    assert "[chief] /job:worker/replica:0/task:0/device:CPU:0" in output
    told = {}
    for text in log.read_text().splitlines():
        host, *options = json.loads(text)
        pairs = list(zip(options, options[1:], strict=False))
        for option in ("ExitOnForwardFailure=yes", "ControlPath=none"):
            assert ("-o", option) in pairs
        told[host] = {f: v for f, v in pairs if f in ("-L", "-R")}
    path = told["127.0.0.1"]["-L"].partition(":")[0]
    folder = os.path.dirname(path)
    own, other = f"{folder}/{chief}", f"{folder}/{worker}"
    assert told == {
        "127.0.0.1": {
            "-L": f"{other}:localhost:{worker}",
            "-R": f"localhost:{chief}:{own}",
        },
        "localhost": {
            "-L": f"{own}:localhost:{chief}",
            "-R": f"localhost:{worker}:{other}",
        },
    }
    assert not pathlib.Path(folder).exists()


@pytest.mark.slow
def test_a_worker_that_hangs_is_ended(launch, ssh):
    """So it is asked, and answers: it must have answered once."""
    line, *_ = launch
    changes, _ = ssh
    launcher = start(line(WAIT), **changes)
    try:
        read_until(launcher, "[worker 0] Ready")
        children = psutil.Process(launcher.pid).children(recursive=True)
        (worker,) = (
            child
            for child in children
            if child.cmdline()[1:4] == ["-m", "tf_convpar_cli", "worker"]
        )
        with pytest.raises(subprocess.TimeoutExpired):
            launcher.wait(timeout=4)
        worker.send_signal(signal.SIGSTOP)
        read_until(launcher, "worker 0 has not answered for ")
        launcher.communicate(timeout=30)
        assert launcher.returncode == 1
        assert not wait_gone([child.pid for child in children])
    finally:
        kill_tree(launcher)


def test_nobody_is_behind_a_socket(tmp_path):
    task = Task("worker", 0, f"unix:{tmp_path}/2222")
    assert ask([task], 1.0, patient=False)[task].startswith("no answer")


@pytest.mark.parametrize(
    ("arguments", "code", "found"),
    [
        (["--hosts", "a:1,b:2", "--tunnel"], 2, "--tunnel with --ssh"),
        (["--hosts", "a:1,b:2", "--ssh", "--dry-run"], 2, "--tunnel with --s"),
        (["-n", "2"], 2, "--tunnel with --ssh"),
        (["--hosts", "a:1,b:2,c:1", "--ssh"], 2, "Received 1 more than once"),
        (["--hosts", "a:1,b:2,a:3", "--ssh"], 2, "Received a more than once"),
        (["--hosts", "a:1,-ob:2", "--ssh"], 2, "Received: '-ob:2'"),
        (["--hosts", "a:1,b", "--ssh"], 2, "Received: 'b'"),
    ],
)
def test_refused(arguments, code, found):
    returned, output = run([*LAUNCH, *arguments, "--tunnel", "x.py"])
    assert returned == code
    assert found in output
    assert "Traceback" not in output


@pytest.mark.slow
@pytest.mark.skipif(
    not CAN_MAKE_MACHINES,
    reason="needs root, iproute2, sshd, tcpdump, wireguard-tools, wireguard-go",
)
@pytest.mark.parametrize("way", ["plain", "vpn", "forwards", "tunnel"])
def test_three_machines_and_a_stranger(way):
    """Each way of docs/security.md, between namespaces, by real programs."""
    trial = start(
        [sys.executable, ROOT / "benchmarks/security/run.py", "--ways", way]
    )
    try:
        output, _ = trial.communicate(timeout=300)
    finally:
        # It removes its machines, other than after SIGKILL.
        trial.terminate()
        trial.communicate(timeout=60)
    assert trial.returncode == 0, output
    found = json.loads(output[output.rindex('{\n "way"') :])
    first, last = found["first_last"]
    assert last < 0.8 * first
    assert found["apart"] < 1e-5
    assert len(set(found["devices"])) == 3
    reached = {
        answer
        for ports in found["ports"].values()
        for name, answer in ports.items()
        if name != "ssh"
    }
    assert all(ports["ssh"] == "open" for ports in found["ports"].values())
    names = [n for text, n in found["texts"].items() if text != "SSH-2.0"]
    assert found["captured_mb"] > 10
    if way == "plain":
        assert "open" in reached
        assert min(names) > 100
    else:
        assert reached == {"silent"}
        assert max(names) == 0
