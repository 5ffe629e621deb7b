"""Emulates unequal machines and slow links by this machine's kernel.

A worker's speed is a quota of its control group (`cpu`, version 1 or 2). Its
link is a pair of virtual interfaces with a token bucket on either side. Both
need root.
"""

import contextlib
import os
import pathlib
import subprocess
import sys
import uuid

GROUPS = pathlib.Path("/sys/fs/cgroup")
PERIOD_US = 10_000
CHIEF, WORKER = "10.199.7.1", "10.199.7.2"


@contextlib.contextmanager
def quota(share):
    """Yields a function that puts a process on `share` of a core."""
    if share is None or share >= 1:
        yield lambda pid: None
        return
    old = (GROUPS / "cpu").is_dir()
    group = (GROUPS / "cpu" if old else GROUPS) / f"convpar-{uuid.uuid4().hex}"
    group.mkdir()
    limit = int(PERIOD_US * share)
    if old:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(limit))
    else:
        (group / "cpu.max").write_text(f"{limit} {PERIOD_US}")
    try:
        yield lambda pid: (group / "cgroup.procs").write_text(str(pid))
    finally:
        # The group's processes have ended; the kernel may need a moment.
        for _ in range(50):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            os.sched_yield()


_BUSY = """
import os
import sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy as np
a = np.ones((1024, 1024), "float32")
while True:
    a @ a
"""


@contextlib.contextmanager
def company(cores):
    """Keeps cores busy with processes that give way to all others.

    Cores of one machine share its memory and its clock: a core alone is faster
    than one beside busy ones. Machines of a cluster have no such neighbours.
    So here every core must have them all the time.
    """
    busy = [
        subprocess.Popen([sys.executable, "-c", _BUSY, str(core)])
        for core in cores
    ]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


@contextlib.contextmanager
def link(rate):
    """Yields a worker's command prefix, and addresses of chief and worker.

    The worker is behind a link of this rate, as `tc` writes it, such as
    `"100mbit"`. None is for no limit: both are then on this machine's loopback.
    """
    if rate is None:
        yield [], "localhost", "localhost"
        return
    space = f"convpar-{uuid.uuid4().hex[:6]}"
    ours, theirs = f"cpc{space[-6:]}", f"cpw{space[-6:]}"

    def run(text):
        subprocess.run(text.split(), check=True)

    run(f"ip netns add {space}")
    try:
        run(f"ip link add {ours} type veth peer name {theirs} netns {space}")
        run(f"ip addr add {CHIEF}/24 dev {ours}")
        run(f"ip link set {ours} up")
        inside = f"ip netns exec {space}"
        run(f"{inside} ip addr add {WORKER}/24 dev {theirs}")
        run(f"{inside} ip link set {theirs} up")
        run(f"{inside} ip link set lo up")
        bucket = f"root tbf rate {rate} burst 256kb latency 100ms"
        run(f"tc qdisc add dev {ours} {bucket}")
        run(f"{inside} tc qdisc add dev {theirs} {bucket}")
        yield inside.split(), CHIEF, WORKER
    finally:
        run(f"ip netns del {space}")
