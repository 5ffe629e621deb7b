"""`convpar launch`: whose line went where, and programs that do not stop."""

import os
import signal
import subprocess
import time

import psutil
import pytest
from processes import CONVPAR
from processes import environment
from processes import kill_tree
from processes import read_until
from processes import start
from processes import wait_gone

from tf_convpar.cli import _shared

LAUNCH = [*CONVPAR, "launch"]


def apart(command, **changes):
    """Runs a command to its end; returns exit code, stdout and stderr."""
    done = subprocess.run(
        list(map(str, command)),
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_module_and_every_line_has_its_task(program):
    module = program("import sys; print(sys.argv[1:]); 1 / 0", "mod.py")
    code, output, errors = apart(
        [*LAUNCH, "-n", "1", "-m", "mod", "-m", "x"],
        PYTHONPATH=f"{module.parent}{os.pathsep}{os.getcwd()}",
    )
    assert code == 1
    assert output == "[chief] ['-m', 'x']\n"
    lines = errors.splitlines()
    assert lines[-1] == "[chief] ZeroDivisionError: division by zero"
    assert all(line.startswith("[chief] ") for line in lines)


@pytest.mark.slow
def test_what_tensorflow_writes_at_its_start_is_left_out(program, monkeypatch):
    """But what the program writes is not; nor where somebody looks for it."""
    text = "import sys, tensorflow; print('mine', file=sys.stderr)"
    command = [*LAUNCH, "-n", "1", program(text)]
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
    assert apart(command) == (0, "", "[chief] mine\n")
    _, _, errors = apart(command, TF_CPP_MIN_LOG_LEVEL="0")
    assert "oneDNN custom operations are on" in errors


def test_lines_of_a_program_are_no_chatter(monkeypatch):
    monkeypatch.setattr("tf_convpar.cli._shared._quiet", True)
    for line, is_chatter in (
        ("I0000 00:00:1795562864.172155   11815 port.cc:153] oneDNN on", True),
        ("W0000 00:00:1795562864.172155 1 a_b.cc:1] x", True),
        ("E0000 00:00:1795562864.172155 1 a_b.cc:1] x", False),
        ("WARNING: my own", False),
        ("I0000 is what I write", False),
    ):
        assert _shared.is_chatter(line) == is_chatter
    monkeypatch.setattr("tf_convpar.cli._shared._quiet", False)
    assert not _shared.is_chatter("W0000 00:00:1.1 1 a_b.cc:1] x")


# Goes on, whatever it is told.
STUBBORN = """
import signal, time

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: print("not now"))
print("waiting")
for _ in range(600):
    time.sleep(0.1)
"""


@pytest.mark.parametrize("times", [3, pytest.param(2, marks=pytest.mark.slow)])
def test_a_program_that_does_not_stop_is_killed(program, times):
    """By a third Ctrl-C, or some time after the second one."""
    launcher = start([*LAUNCH, "-n", "2", program(STUBBORN)])
    try:
        read_until(launcher, "[chief] waiting")
        children = psutil.Process(launcher.pid).children(recursive=True)
        pids = [child.pid for child in children]
        said = ""
        for _ in range(2):
            launcher.send_signal(signal.SIGINT)
            said += read_until(launcher, "[chief] not now")
        begin = time.monotonic()
        if times == 3:
            # Of the launcher itself: before or after the program's line.
            warning = "Told twice to stop; it is killed in 10 s"
            if warning not in said:
                read_until(launcher, warning)
            launcher.send_signal(signal.SIGINT)
        output, _ = launcher.communicate(timeout=20)
        assert "The program did not stop; killed." in output
        assert launcher.returncode == 128 + signal.SIGKILL
        assert (time.monotonic() - begin < 5) == (times == 3)
        assert not wait_gone(pids)
    finally:
        kill_tree(launcher)


def test_characters_that_the_output_has_not(program):
    """A program of another encoding; what it writes later comes as well."""
    text = (
        "import sys; sys.stdout.buffer.write(b'caf\\xe9\\n');"
        "[print('more', i) for i in range(20000)]"
    )
    code, output, errors = apart(
        [*LAUNCH, "-n", "1", program(text)], PYTHONIOENCODING="latin-1"
    )
    assert code == 0, errors
    lines = output.splitlines()
    assert lines[0] == "[chief] caf?"
    assert lines[-1] == "[chief] more 19999"
