"""What a device's machine gives to a program, by its own /proc and /sys."""

import os
import pathlib
import re
import subprocess
import sys
import time

import psutil
import pytest

from tf_convpar import machines

GROUPS = pathlib.Path("/sys/fs/cgroup")
PROGRAM = """
import os, pathlib, sys
pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
from tf_convpar import machines
print(machines.memory_bytes("/job:localhost/replica:0/task:0/device:CPU:0"))
"""
LIMIT = 3 << 30


@pytest.fixture
def limited():
    """A control group of this kernel, with less memory than the machine."""
    for folder, name in (
        (GROUPS / "memory", "memory.limit_in_bytes"),
        (GROUPS, "memory.max"),
    ):
        group = folder / f"convpar-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / name).write_text(str(LIMIT))
            yield group
            return
        except OSError:
            continue
        finally:
            group.rmdir()
    pytest.skip("no control group of memory can be made here")


@pytest.mark.slow
def test_memory_is_that_of_the_control_group(limited):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(limited)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (free,) = re.findall(r"^MemAvailable:\s*(\d+)", _memory(), re.M)
    assert int(free) * 1024 > LIMIT
    # Python and TensorFlow are in it.
    assert 0.5 * LIMIT < int(done.stdout) < LIMIT - (50 << 20)


NEIGHBOURS = """
from tf_convpar import machines
with machines.busy_neighbours(machines.usable_cores()[:1]):
    print("begun", flush=True)
    input()
"""


BURNER = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
end = time.monotonic() + 2
while time.monotonic() < end:
    pass
print(time.process_time())
"""


@pytest.mark.alone
def test_neighbours_compute_and_give_way():
    """Also to programs of other sessions, as a worker is."""
    (*_, core) = machines.usable_cores()
    with machines.busy_neighbours([core]):
        (neighbour,) = psutil.Process().children()[-1:]
        _wait(lambda: _computes(neighbour))
        assert neighbour.cpu_affinity() == [core]
        before = sum(neighbour.cpu_times()[:2])
        done = subprocess.run(
            [sys.executable, "-c", BURNER, str(core)],
            capture_output=True,
            check=True,
            start_new_session=True,
        )
        during = sum(neighbour.cpu_times()[:2]) - before
        assert during < 0.2 * float(done.stdout)
    assert not neighbour.is_running()


@pytest.mark.alone
def test_neighbours_end_with_a_program_that_is_killed():
    with subprocess.Popen(
        [sys.executable, "-c", NEIGHBOURS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout.readline() == "begun\n"
        (neighbour,) = psutil.Process(program.pid).children()
        _wait(lambda: _computes(neighbour))
        program.kill()
    _wait(lambda: not neighbour.is_running())


def _computes(process):
    """Whether it multiplies: it waits for nothing, and has its matrices."""
    with process.oneshot():
        maps = process.memory_info().rss
        return process.status() == psutil.STATUS_RUNNING and maps > 25 << 20


def _wait(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def _memory():
    return pathlib.Path("/proc/meminfo").read_text()


@pytest.mark.slow
def test_threads_of_the_environment_are_another_calibration():
    program = (
        "from tf_convpar import machines;"
        "name = '/job:localhost/replica:0/task:0/device:CPU:0';"
        "print(machines.identity(name), machines.threads(name))"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "TF_NUM_INTRAOP_THREADS": threads},
        ).stdout
        for threads in ("1", "7", "0")
    ]
    assert len(set(found)) == 3
    assert found[1].endswith(" 7\n")
    assert not found[2].endswith(" 0\n")
