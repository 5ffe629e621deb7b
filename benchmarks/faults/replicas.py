"""Trains eight replicas while machines fail at random, and says what it costs.

    sudo python benchmarks/faults/replicas.py --every 0 --minutes 5 --output f
    sudo python benchmarks/faults/replicas.py --minutes 30 --output f
    python benchmarks/faults/replicas.py --table f

A chief with a replica and seven workers, each on a node of its own
(`../cluster/nodes.py`; needs root), train LeNet by `DiLoCo(backup_dir=...)`.
Whoever ends is started again at once. Every 29 s a node is killed, or its
processes are stopped, or its link is cut for some seconds. What is measured is
the samples that the common weights are made of, of the whole time since the
first round. `--every 0` is the undisturbed training.
"""

import argparse
import contextlib
import itertools
import os
import pathlib
import random
import signal
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "cluster"))

import nodes  # noqa: E402
import replicas_table  # noqa: E402
import systems  # noqa: E402
from replicas_chief import accuracies  # noqa: E402
from replicas_chief import note  # noqa: E402
from replicas_chief import read  # noqa: E402
from replicas_table import KINDS  # noqa: E402

NODES, SHARE = 8, 0.24
# Of a replica, in a round.
STEPS = 1000
# Seconds that nodes are stopped or cut off, longer than others wait for them.
AWAY_S = 10.0
# Seconds for the first round.
START_S = 240.0


class Tasks:
    """A task on each node, which is started again whenever it ends."""

    def __init__(self, members, folder, steps):
        program = HERE / "replicas_chief.py"
        command = [sys.executable, program, folder, steps]
        self.tasks = systems.tasks(members, command)
        self.folder, self.starts = folder, itertools.count()
        self.running = [self.start(i) for i in range(NODES)]
        self.due = []

    def start(self, index):
        """Starts the task of a node, for the first time or again."""
        task = self.tasks[index]
        own = self.folder / f"node{index}"
        own.mkdir(exist_ok=True)
        return task.node.start(
            ["env", "-C", own, *task.command],
            own / f"log{next(self.starts)}",
            PYTHONPATH=str(ROOT),
            TF_CPP_MIN_LOG_LEVEL="2",
            **task.env,
        )

    def signal(self, index, number):
        """Sends a signal to all that runs on a node."""
        for pid in nodes._read(self.tasks[index].node.group / "cgroup.procs"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), number)

    def link(self, index, state):
        """Plugs a node's cable in ("up") or out ("down")."""
        space = self.tasks[index].node.space
        nodes._run(f"ip -n {space} link set eth0 {state}")

    def fail(self, index, kind):
        """Makes a node fail; it is mended in `tend`."""
        mended = time.time() + AWAY_S
        if kind == "killed":
            self.signal(index, signal.SIGKILL)
        elif kind == "stopped":
            self.signal(index, signal.SIGSTOP)
            self.due.append((mended, self.signal, (index, signal.SIGCONT)))
        else:
            self.link(index, "down")
            self.due.append((mended, self.link, (index, "up")))

    def tend(self):
        """Mends what it is time for, and starts again what has ended."""
        for entry in [e for e in self.due if e[0] <= time.time()]:
            self.due.remove(entry)
            entry[1](*entry[2])
        for index, process in enumerate(self.running):
            if process.poll() is not None:
                # -9 is our doing; anything else is a fault of ours.
                print(f"node {index} ended: {process.returncode}", flush=True)
                self.running[index] = self.start(index)


def run(given):
    with tempfile.TemporaryDirectory() as name:
        # Not one in which an earlier run would be gone on with.
        folder = pathlib.Path(tempfile.mkdtemp(dir=given.keep or name))
        with nodes.cluster([SHARE] * NODES, None) as members:
            for node in members if given.one_box else ():
                unlimited(node)
            tasks = Tasks(members, folder, given.steps)
            faults = disturbed(tasks, folder, given)
        # As Keras counts rounds; one that was made again counts once.
        rounds = {row["round"]: row for row in read(folder / "rounds.jsonl")}
        rows = sorted(rounds.values(), key=lambda row: row["at"])
        for row in accuracies(folder, sorted(rounds)):
            rounds[row["round"]] |= row
    start = rows[0]["at"]
    for row in [*rows, *faults]:
        for key in {"begun", "at"} & set(row):
            row[key] = round(row[key] - start, 2)
        note(given.output, {"every": given.every} | row)


def unlimited(node):
    """Lets a node have what others of its core leave."""
    if (node.group / "cpu.max").exists():
        (node.group / "cpu.max").write_text("max")
    else:
        (node.group / "cpu.cfs_quota_us").write_text("-1")


def disturbed(tasks, folder, given):
    """Faults at random, but each node and kind as often as any other."""
    drawn, order, faults = random.Random(given.seed), [], []
    end, due = None, time.time() + START_S
    while end is None or time.time() < end:
        tasks.tend()
        time.sleep(0.05)
        if end is None and read(folder / "rounds.jsonl"):
            end = time.time() + 60 * given.minutes
            due = time.time() + given.every
        if end is None and time.time() > due:
            raise SystemExit(f"Expected a round. See {folder}/node0; --keep.")
        if end and given.every and time.time() >= due:
            due += given.every
            if not order:
                order = list(itertools.product(range(NODES), KINDS))
                drawn.shuffle(order)
            index, kind = order.pop()
            tasks.fail(index, kind)
            whom = f"worker {index - 1}" if index else "chief"
            row = {"fault": kind, "whom": whom, "at": time.time()}
            faults.append(row)
            print(row, flush=True)
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--every", type=float, default=29.0, help="seconds")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--steps", type=int, default=STEPS, help="of a round")
    parser.add_argument(
        "--one-box",
        action="store_true",
        help="nodes have what others of their core leave",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output")
    parser.add_argument("--keep", help="a folder for all logs")
    parser.add_argument("--table", help="prints the table of an output")
    given = parser.parse_args()
    if given.table:
        print(replicas_table.table(read(given.table)))
    else:
        run(given)


if __name__ == "__main__":
    main()
