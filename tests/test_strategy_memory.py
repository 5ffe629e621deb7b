"""Memory that stays in the process."""

import subprocess
import sys

import pytest

# Pages that the system had to find for the second of two equal arrays.
PROGRAM = """
import resource
{before}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    b"1" * (48 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""
KEEP = "from tf_convpar.strategy import memory; assert memory.keep() is {}"
STRATEGY = """
import tf_convpar as convpar
convpar.ConvParallelStrategy(devices=["CPU:0"])
"""


def faults(before, **env):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before)],
        env={"PATH": "/usr/bin:/bin", **env},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def test_what_a_step_frees_serves_the_next():
    pages = (48 << 20) // 4096
    assert faults("") > 0.9 * pages
    assert faults(KEEP.format(True)) < 0.1 * pages
    assert faults(STRATEGY) < 0.1 * pages


@pytest.mark.parametrize(
    ("name", "value"), [("MALLOC_TRIM_THRESHOLD_", "131072")]
)
def test_what_users_set_goes_first(name, value):
    pages = (48 << 20) // 4096
    assert faults(KEEP.format(False), **{name: value}) > 0.9 * pages
