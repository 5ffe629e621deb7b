"""Makes workers fail in every way and at every time, and says what follows.

    sudo python benchmarks/faults/run.py --output faults.jsonl
    python benchmarks/faults/run.py --table faults.jsonl

Chief and two workers are nodes of their own (`../cluster/nodes.py`). Each
fault happens in `fit`, `evaluate`, `predict` and while the model is saved.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "cluster"))

import nodes  # noqa: E402

WAYS = ("filters", "samples", "replicas")
FAULTS = {
    "none": "none",
    "idle": "killed between two steps",
    "forward": "killed in the forward pass",
    "backward": "killed in the backward pass",
    "stop": "stopped (SIGSTOP)",
    "cut": "cut off the network",
    "apart": "two workers cut off from each other",
    "slow": "a tenth of its speed",
    "two": "both workers killed at once",
    "restart": "killed, another in its place",
}
MODES = ("fit", "evaluate", "predict", "save")
SHARE, PORT = 0.6, 2222
SLOW_PERIOD_US = 100_000
LIMIT_S = 240


class Cluster:
    """A chief and two workers, which fail when they are told to."""

    def __init__(self, members, fault, folder):
        self.chief, *self.others = members
        both = fault in ("two", "apart")
        self.lost = self.others if both else self.others[-1:]
        self.fault, self.folder = fault, folder
        self.running = {}

    def config(self, kind, index):
        """TF_CONFIG of a task."""
        return json.dumps(
            {
                "cluster": {
                    "chief": [f"{self.chief.address}:{PORT}"],
                    "worker": [f"{n.address}:{PORT}" for n in self.others],
                },
                "task": {"type": kind, "index": index},
            }
        )

    def start(self, node):
        """Starts a worker, for the first time or again."""
        index = self.others.index(node)
        self.running[node.space] = node.start(
            [sys.executable, "-m", "tf_convpar", "worker", "--threads=1"],
            self.folder / f"worker{index}.log",
            TF_CONFIG=self.config("worker", index),
            PYTHONPATH=str(ROOT),
        )

    def ready(self, node):
        """Waits until a worker answers."""
        log = self.folder / f"worker{self.others.index(node)}.log"
        while "Ready: " not in log.read_text():
            time.sleep(0.1)

    def lose(self):
        """Makes workers fail."""
        for node in self.lost if self.fault != "none" else ():
            if self.fault == "cut":
                nodes._run(f"ip -n {node.space} link set eth0 down")
            elif self.fault == "apart":
                node.isolate(True)
            elif self.fault == "slow":
                # A quota has at least a millisecond.
                slow = round(SLOW_PERIOD_US * node.share / 10)
                if (node.group / "cpu.max").exists():
                    text = f"{slow} {SLOW_PERIOD_US}"
                    (node.group / "cpu.max").write_text(text)
                else:
                    for name, value in (
                        ("cpu.cfs_period_us", SLOW_PERIOD_US),
                        ("cpu.cfs_quota_us", slow),
                    ):
                        (node.group / name).write_text(str(value))
            else:
                stop = self.fault == "stop"
                number = signal.SIGSTOP if stop else signal.SIGKILL
                for pid in map(int, nodes._read(node.group / "cgroup.procs")):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
                if self.fault == "restart":
                    self.running[node.space].wait()
                    self.start(node)

    def back(self):
        """Mends what failed, and waits until workers can answer."""
        for node in self.lost:
            if self.fault == "cut":
                nodes._run(f"ip -n {node.space} link set eth0 up")
            elif self.fault == "apart":
                node.isolate(False)
            elif self.fault == "slow":
                nodes._limit(node.group, node.share)
            elif self.fault == "stop":
                for pid in map(int, nodes._read(node.group / "cgroup.procs")):
                    os.kill(pid, signal.SIGCONT)
            elif self.fault == "restart":
                self.ready(node)
            elif self.running[node.space].poll() is not None:
                self.start(node)
                self.ready(node)
        # Connections that failed are made again now and then.
        time.sleep(3.0)

    def serve(self, asks, answers):
        """Does what the chief asks for, until it ends."""
        for line in asks:
            what, after_s = json.loads(line)
            act = {"lose": self.lose, "back": self.back}[what]
            if after_s:
                threading.Timer(after_s, act).start()
            else:
                act()
                answers.write("done\n")
                answers.flush()


def run(way, fault):
    """One chief's program, in which the fault happens four times."""
    with (
        tempfile.TemporaryDirectory() as name,
        nodes.cluster([SHARE, SHARE, SHARE / 2], None) as members,
    ):
        folder = pathlib.Path(name)
        pipes = [folder / "ask", folder / "answer"]
        for pipe in pipes:
            os.mkfifo(pipe)
        cluster = Cluster(members, fault, folder)
        for node in cluster.others:
            cluster.start(node)
        chief = cluster.chief.start(
            [sys.executable, HERE / "chief.py", way, fault, *pipes],
            folder / "chief.log",
            TF_CONFIG=cluster.config("chief", 0),
            PYTHONPATH=str(ROOT),
        )
        late = threading.Timer(LIMIT_S, chief.kill)
        late.start()
        with open(pipes[0]) as asks, open(pipes[1], "w") as answers:
            cluster.serve(asks, answers)
        code = chief.wait()
        late.cancel()
        said = (folder / "chief.log").read_text()
        found = {"way": way, "fault": fault, "code": code}
        if code:
            print(said[said.rfind("Traceback") :][:3000], file=sys.stderr)
            return found
        lines = said.splitlines()
        found |= json.loads(next(x for x in lines[::-1] if x[:1] == "{"))
        names = [f"worker {cluster.others.index(n)}" for n in cluster.lost]
        says = "reach" if fault == "apart" else "lost"
        found["named"] = sum(
            says in x and all(n in x for n in names) for x in lines
        )
        return found


def table(rows):
    """Markdown: seconds of the step in which it happened, beside a calm one."""
    head = ["fault", "spread by", *MODES, "weights apart"]
    lines = [head, ["---"] * len(head)]
    for fault, words in FAULTS.items():
        for way in WAYS:
            for row in rows:
                if (row["fault"], row["way"]) != (fault, way):
                    continue
                if row["code"]:
                    lines.append([words, way, "failed", "", "", "", ""])
                    continue
                took = [
                    f"{max(0.0, row['seconds'][m] - row['step_s']):.1f} s"
                    for m in MODES
                ]
                apart = f"{row['fit']:.0e}" if "fit" in row else ""
                lines.append([words, way, *took, apart])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", help="one line of JSON for each program")
    parser.add_argument("--table", help="prints the table of such a file")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS)
    given = parser.parse_args()
    if given.table:
        text = pathlib.Path(given.table).read_text()
        print(table([json.loads(line) for line in text.splitlines()]))
        return
    for fault in given.faults:
        for way in given.ways:
            print(f"{FAULTS[fault]}, {way}", file=sys.stderr)
            found = run(way, fault)
            print(json.dumps(found))
            with open(given.output, "a") as file:
                file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
