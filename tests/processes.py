"""Real processes for tests: `convpar`, and programs that join a cluster."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
CONVPAR = [sys.executable, "-m", "tf_convpar_cli"]


def environment(**changes):
    """This process's, in which programs anywhere can import the package."""
    clean = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    return {**clean, "PYTHONPATH": str(ROOT), **changes}


def start(command, stdin=None, **changes):
    """Starts a command; its output, stdout and stderr in one, is a pipe."""
    return subprocess.Popen(
        list(map(str, command)),
        env=environment(**changes),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Ctrl-C on the tests is not for them.
        start_new_session=True,
    )


def run(command, **changes):
    """Runs a command to its end; returns exit code and output."""
    process = start(command, **changes)
    try:
        output, _ = process.communicate(timeout=90)
    finally:
        kill_tree(process)
    return process.returncode, output


def read_until(process, text):
    """Reads output up to the line with this text; returns what was read."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return "".join(lines)
    raise AssertionError(f"ended without {text!r}: {''.join(lines)}")


def kill_tree(process):
    """Ends a process and its children, if any are left."""
    if process.poll() is None:
        children = psutil.Process(process.pid).children(recursive=True)
        for victim in (*children, process):
            victim.kill()
    process.wait()


def wait_gone(pids, timeout_s=5.0):
    """Waits until none of these processes runs; returns those that do."""
    deadline = time.monotonic() + timeout_s
    left = list(pids)
    while left and time.monotonic() < deadline:
        left = [pid for pid in left if _runs(pid)]
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left


def _runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
