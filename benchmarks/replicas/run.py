"""Accuracy against time for each method of `convpar.replicas`.

    python benchmarks/replicas/run.py --output found.jsonl
    python benchmarks/replicas/plot.py found.jsonl accuracy.png

Starts worker processes, and a chief that trains LeNet on handwritten digits by
each method in turn, from the same weights for each seed. Time is that of
training: neither of tracing, which is over after the first step, nor of the
evaluations by which accuracy is known.

With `--shares 0.5 0.5 0.5 0.5 --rate 1gbit` each replica is on a node of its
own instead: a share of a core, and a link of that rate (needs root), with
`--latency 0.006` seconds of each packet on it. The chief is on the first one.
`--program steps` measures steps instead of learning.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cluster"))

import nodes as emulated
import systems

from tf_convpar.cluster.local_cluster import local_workers

HERE = pathlib.Path(__file__).parent


def on_processes(count, command):
    """Replicas are on workers, which share this machine."""
    with local_workers(count, threads=1) as local:
        subprocess.run(command, env={**os.environ, **local.env()}, check=True)


def on_nodes(shares, rate, latency_s, command, counts):
    """A replica on each node, the first one's in the chief's process."""
    with (
        emulated.cluster(shares, rate, latency_s) as found,
        tempfile.TemporaryDirectory() as logs,
    ):
        chief, *workers = systems.tasks(found, [*command, "--chief-too"])
        started = [
            task.node.start(task.command, f"{logs}/{i}", **task.env)
            for i, task in enumerate(workers, 1)
        ]
        if counts:
            # By its processes the chief reads what a node has sent.
            pids = [str(own.pid) for own in started]
            chief.command.extend(["--processes", "self", *pids])
        code = chief.node.start(chief.command, f"{logs}/0", **chief.env).wait()
        print(pathlib.Path(f"{logs}/0").read_text()[-4000:])
        if code:
            raise SystemExit(code)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--shares", nargs="+", type=float)
    parser.add_argument("--rate")
    parser.add_argument("--latency", type=float)
    parser.add_argument(
        "--program", choices=("chief", "steps"), default="chief"
    )
    parser.add_argument("--output", type=pathlib.Path, required=True)
    ours, others = parser.parse_known_args()
    output = ours.output.absolute()
    program = str(HERE / f"{ours.program}.py")
    command = [sys.executable, program, f"--output={output}", *others]
    if ours.shares:
        counts = ours.program == "chief"
        on_nodes(ours.shares, ours.rate, ours.latency, command, counts)
    else:
        on_processes(ours.workers, command)


if __name__ == "__main__":
    main()
