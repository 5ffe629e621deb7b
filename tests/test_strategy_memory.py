"""Memory that stays in the process."""

import subprocess
import sys

import pytest

import tf_convpar

# Pages that the system had to find for the second of two equal arrays, by a
# process of one core. They are more than the 256 MB that any process keeps.
PROGRAM = """
import os, resource
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
{before}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    b"1" * (320 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
{last}
"""
AGAIN = "print(faults())"
ON_A_THREAD = """
import threading
thread = threading.Thread(target=lambda: print(faults()))
thread.start()
thread.join()
"""
# Without what the package imports, TensorFlow above all: that takes longer.
KEEP = f"""
import sys, types
package = sys.modules["tf_convpar"] = types.ModuleType("tf_convpar")
package.__path__ = {list(tf_convpar.__path__)}
from tf_convpar.cluster import memory
assert "tensorflow" not in sys.modules
assert memory.keep() is {{}}
"""
STRATEGY = """
import tf_convpar as convpar
convpar.ConvParallelStrategy(devices=["CPU:0"])
"""


def faults(before, last=AGAIN, **env):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before, last=last)],
        env={"PATH": "/usr/bin:/bin", **env},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def test_what_a_step_frees_serves_the_next():
    pages = (320 << 20) // 4096
    assert faults("") > 0.9 * pages
    assert faults(KEEP.format(True)) < 0.1 * pages
    assert faults(STRATEGY) < 0.1 * pages


def test_what_is_trimmed_is_asked_for_again():
    pages = (320 << 20) // 4096
    program = "memory.trim()\nprint(faults())"
    assert faults(KEEP.format(True), program) > 0.9 * pages


def test_what_one_thread_frees_serves_another():
    pages = (320 << 20) // 4096
    assert faults("", ON_A_THREAD) > 0.9 * pages
    assert faults(KEEP.format(True), ON_A_THREAD) < 0.1 * pages


@pytest.mark.parametrize(
    ("name", "value"),
    [("MALLOC_TRIM_THRESHOLD_", "131072"), ("MALLOC_ARENA_MAX", "9")],
)
def test_what_users_set_goes_first(name, value):
    pages = (320 << 20) // 4096
    assert faults(KEEP.format(False), **{name: value}) > 0.9 * pages
