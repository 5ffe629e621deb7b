"""Emulates a cluster by this machine's kernel: each node's speed and link.

Each node is a network namespace, joined to the others by a switch, and a
control group (`cpu`, version 1 or 2) with a quota on one core. Needs root.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid

GROUPS = pathlib.Path("/sys/fs/cgroup")
# With a longer period, a node with half a core would stand still for as long as
# a step of a small network takes.
PERIOD_US = 10_000
# The most that may leave a link at once, and the longest wait in its queue.
BUCKET = "burst 256kb latency 100ms"
NETWORK = "10.98.0"

_BUSY = """
import os
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy as np
a = np.ones((1024, 1024), "float32")
benchmark = os.getppid()
# However it ends.
while os.getppid() == benchmark:
    a @ a
"""


@dataclasses.dataclass(frozen=True)
class Node:
    """One machine of the cluster.

    Attributes:
        address: Its address on `eth0`, the interface that counts its bytes.
        core: Number of its core.
        share: Share of that core.
        space: Name of its network namespace.
        group: Folder of its control group.
    """

    address: str
    core: int
    share: float
    space: str
    group: pathlib.Path

    def start(self, command, log, **env):
        """Starts a program in this node; what it prints goes to a file."""
        inside = ["ip", "netns", "exec", self.space, *command]
        with open(log, "wb") as file:
            return subprocess.Popen(
                _confined(self.group, self.core, inside),
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def end(self):
        """Ends whatever runs in this node."""
        _end(self.group)

    def isolate(self, whether):
        """Lets the switch drop what it sends to other isolated nodes."""
        cluster, _, index = self.space.rpartition("-")
        _run(
            f"ip -n {cluster}-switch link set port{index} type bridge_slave "
            f"isolated {'on' if whether else 'off'}"
        )


@contextlib.contextmanager
def cluster(shares, rate, latency_s=None):
    """Yields nodes with these shares of a core, and ends them.

    `rate` is that of their links, each way, as `tc` writes it, such as
    `"1gbit"`; None is for no limit. With a latency, each packet takes so many
    seconds more, one way. Cores are kept busy; see `_company`. A benchmark that
    is terminated ends all of it, as one that is interrupted.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    name = f"convpar-{uuid.uuid4().hex[:6]}"
    cores = cores_for(shares)
    with contextlib.ExitStack() as stack:
        # The switch is in a namespace as well. So this machine's own rules for
        # packets (a firewall's, a container runtime's) do not reach it, and
        # all links are gone when their namespaces are.
        if latency_s is None:
            switch = stack.enter_context(_namespace(f"{name}-switch"))
            _run(f"ip -n {switch} link add name switch type bridge")
            _run(f"ip -n {switch} link set switch up")
        nodes = []
        for i, (share, core) in enumerate(zip(shares, cores, strict=True)):
            space = stack.enter_context(_namespace(f"{name}-{i}"))
            address = f"{NETWORK}.{i + 1}"
            if latency_s is None:
                _join(space, address, switch, f"port{i}", rate)
            group = stack.enter_context(_group(space))
            _limit(group, share)
            nodes.append(Node(address, core, share, space, group))
        if latency_s is not None:
            ends = [f"{node.space}={node.address}" for node in nodes]
            stack.enter_context(_wire(ends, rate, latency_s))
        for core in sorted(set(cores)):
            stack.enter_context(_company(f"{name}-idle-{core}", core))
        yield nodes


def cores_for(shares):
    """A core for each node: the first of those with the most room."""
    free = dict.fromkeys(sorted(os.sched_getaffinity(0)), 1.0)
    found = []
    for share in shares:
        core = max(free, key=lambda core: round(free[core], 6))
        free[core] -= share
        found.append(core)
        if not 0 < share <= 1 or free[core] < -1e-6:
            raise ValueError(
                "Expected shares of a core, each above 0 and at most 1, which "
                f"fit on the {len(free)} cores of this machine one after the "
                f"other. Received: shares={list(shares)}."
            )
    return found


@contextlib.contextmanager
def _namespace(name):
    _run(f"ip netns add {name}")
    try:
        _run(f"ip -n {name} link set lo up")
        yield name
    finally:
        _run(f"ip netns del {name}")


def _join(space, address, switch, port, rate):
    """Puts a cable between a node and the switch, limited at both ends."""
    _run(
        f"ip link add name eth0 netns {space} type veth "
        f"peer name {port} netns {switch}"
    )
    _run(f"ip -n {space} addr add {address}/24 dev eth0")
    _run(f"ip -n {space} link set eth0 up")
    _run(f"ip -n {switch} link set {port} master switch up")
    if rate is not None:
        bucket = f"root tbf rate {rate} {BUCKET}"
        _run(f"tc -n {space} qdisc add dev eth0 {bucket}")
        _run(f"tc -n {switch} qdisc add dev {port} {bucket}")


@contextlib.contextmanager
def _wire(ends, rate, latency_s):
    """A cable of `wire.py`'s, which ends with its standard input."""
    number, unit = re.fullmatch(r"([\d.]+)([kmg]?)bit", rate).groups()
    bits = float(number) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[unit]
    command = [sys.executable, pathlib.Path(__file__).with_name("wire.py")]
    command += [f"--rate={bits}", f"--latency={latency_s}", *ends]
    with subprocess.Popen(
        list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as cable:
        if cable.stdout.readline() != b"up\n":
            raise OSError("Expected TUN devices, as this kernel gives to root.")
        yield


@contextlib.contextmanager
def _group(name):
    """Yields a control group; when it is left, what runs in it ends."""
    old = (GROUPS / "cpu").is_dir()
    if not old and "cpu" not in _read(GROUPS / "cgroup.subtree_control"):
        (GROUPS / "cgroup.subtree_control").write_text("+cpu")
    group = (GROUPS / "cpu" if old else GROUPS) / name
    group.mkdir()
    try:
        yield group
    finally:
        _end(group)
        _remove(group)


def _limit(group, share):
    if share == 1:
        # The node has its core to itself. A quota of all of it would still stop
        # it now and then, for a millisecond until the next period begins.
        return
    quota = int(PERIOD_US * share)
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota))


def _end(group):
    """Ends the processes of a group; they are gone on return."""
    stop = time.monotonic() + 10
    while (pids := _read(group / "cgroup.procs")) and time.monotonic() < stop:
        for pid in map(int, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _remove(group):
    """Removes a group without processes; the kernel may need a moment."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            return group.rmdir()
        time.sleep(0.02)
    return group.rmdir()


@contextlib.contextmanager
def _company(name, core):
    """Keeps a core busy with a process that gives way to all others.

    Cores of one machine share its memory and its clock: a core alone is faster
    than one beside busy ones. Machines of a cluster have no such neighbours.
    So here every core must have them all the time, for one node alone as well
    as for nodes that wait for one another.
    """
    with _group(name) as group:
        weights = {"cpu.idle": 1, "cpu.weight": 1, "cpu.shares": 2}
        for file, value in weights.items():
            # An idle group has no weight, and older kernels no idle group.
            with contextlib.suppress(OSError):
                if (group / file).exists():
                    (group / file).write_text(str(value))
        busy = subprocess.Popen(
            _confined(group, core, [sys.executable, "-c", _BUSY])
        )
        try:
            yield
        finally:
            busy.kill()
            busy.wait()


def _confined(group, core, command):
    """The command, put in a group and on a core before it starts a thread."""
    enter = 'echo $$ > "$0" && exec "$@"'
    procs = str(group / "cgroup.procs")
    pin = ["taskset", "--cpu-list", str(core)]
    return ["sh", "-c", enter, procs, *pin, *map(str, command)]


def _read(file):
    """The words in a file of the kernel."""
    return file.read_text().split()


def _run(text):
    done = subprocess.run(shlex.split(text), capture_output=True, text=True)
    if done.returncode:
        raise OSError(
            "Expected this kernel to make a cluster, as it does for root. "
            f"Received: {done.stderr.strip()!r} from {text!r}."
        )
