"""Programs that keep cores busy and give way to all others."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from collections.abc import Sequence

# Arguments: its core, and who started it. It ends with that process, however
# that ends. Linux gives each session of programs as much of a core as any other
# (sched(7), "autogroup"), however little the programs in it want. So it is in a
# session of its own, which wants little too. Who is not root may say so ten
# times a second, on all of a machine. Who may not at all keeps nothing busy.
_PROGRAM = """
import os
import sys
import time

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
os.setsid()
while os.path.exists("/proc/self/autogroup"):
    try:
        with open("/proc/self/autogroup", "w") as group:
            group.write("19")
        break
    except BlockingIOError:
        time.sleep(0.11)

import numpy as np

numbers = np.ones((1024, 1024), "float32")
while os.getppid() == int(sys.argv[2]):
    numbers @ numbers
"""


@contextlib.contextmanager
def busy_neighbours(cores: Sequence[int]) -> Iterator[None]:
    """Within it each core computes all the time, for others or for nobody.

    ```python
    with machines.busy_neighbours([0, 1]):
        one_s = seconds_of_steps_on_one_core()
        two_s = seconds_of_steps_on_both()
    ```

    Cores of one machine share its clock and its memory, so one is faster while
    the others rest. Machines of a cluster are not. Where cores stand for
    machines, one of them is measured beside busy ones, as several are.

    Args:
        cores: Numbers of the cores. Systems other than Linux do nothing.
    """
    if not hasattr(os, "SCHED_IDLE"):
        yield
        return
    with contextlib.ExitStack() as stack:
        for core in cores:
            program = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(core), str(os.getpid())],
                stdin=subprocess.DEVNULL,
            )
            stack.enter_context(program)
            stack.callback(program.kill)
        yield
