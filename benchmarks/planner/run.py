"""Compares predicted and measured steps on clusters of this machine's cores.

A cluster is one process; two processes with a core each; two of which one has
half a core, or a third; or two with a link of 1 Gbit/s or 100 Mbit/s. All but
the first two clusters need root.
"""

import argparse
import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys

import rich.console
import rich.progress
import rich.table
from emulate import company
from emulate import link
from emulate import quota

HERE = pathlib.Path(__file__).parent
NETWORKS = ["50:500", "150:800", "300:1000", "500:1500"]
# Name, workers, share of a core for the chief and for the worker, link.
CLUSTERS = {
    "one": (0, 1, None, None),
    "two": (1, 1, 1, None),
    "half worker": (1, 1, 0.5, None),
    "half chief": (1, 0.5, 1, None),
    "third worker": (1, 1, 1 / 3, None),
    "third chief": (1, 1 / 3, 1, None),
    "1 Gbit/s": (1, 1, 1, "1gbit"),
    "100 Mbit/s": (1, 1, 1, "100mbit"),
}


def free_port():
    with socket.socket() as taken:
        taken.bind(("", 0))
        return taken.getsockname()[1]


def start(command, core, put, **kwargs):
    """Starts a process on one core, in its group before it starts a thread."""

    def prepare():
        os.sched_setaffinity(0, {core})
        put(os.getpid())

    return subprocess.Popen(command, preexec_fn=prepare, **kwargs)


def rows(cluster, network, splits):
    """The rows that the chief prints for a network on a cluster."""
    workers, chief_share, worker_share, rate = CLUSTERS[cluster]
    with contextlib.ExitStack() as stack:
        env = dict(os.environ)
        stack.enter_context(company((0, 1)))
        prefix, here, there = stack.enter_context(link(rate))
        if workers:
            spec = {
                "chief": [f"{here}:{free_port()}"],
                "worker": [f"{there}:{free_port()}"],
            }

            def config(job):
                return json.dumps(
                    {"cluster": spec, "task": {"type": job, "index": 0}}
                )

            env["TF_CONFIG"] = config("chief")
            worker = start(
                [*prefix, sys.executable, "-m", "tf_convpar", "worker"]
                + ["--threads=1"],
                1,
                stack.enter_context(quota(worker_share)),
                env={**os.environ, "TF_CONFIG": config("worker")},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(worker.wait)
            stack.callback(worker.kill)
        chief = start(
            [sys.executable, HERE / "chief.py", f"--kernels={network}"]
            + ["--splits", *splits],
            0,
            stack.enter_context(quota(chief_share)),
            env=env,
            stdout=subprocess.PIPE,
            text=True,
            stderr=None if "LOUD" in os.environ else subprocess.DEVNULL,
        )
        stack.callback(chief.wait)
        stack.callback(chief.kill)
        for line in chief.stdout:
            yield {"cluster": cluster, **json.loads(line)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="*", default=NETWORKS)
    parser.add_argument("--clusters", nargs="*", default=list(CLUSTERS))
    parser.add_argument(
        "--splits", nargs="*", default=[], help="plan, equal, only 0, only 1"
    )
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    found = []
    console = rich.console.Console(stderr=True)
    cases = [(c, n) for n in options.networks for c in options.clusters]
    for cluster, network in rich.progress.track(cases, console=console):
        for row in rows(cluster, network, options.splits):
            found.append(row)
            console.print(
                f"{cluster}, {network}, {row['split']}: predicted "
                f"{row['predicted_ms']:.1f} ms, measured "
                f"{row['measured_ms']:.1f} ms"
            )
            if options.json:
                options.json.write_text(json.dumps(found, indent=1) + "\n")
    table = rich.table.Table(
        "kernels",
        "cluster",
        "split",
        "kernels of each device",
        "predicted",
        "measured",
        "predicted / measured",
        "quartiles",
        "calibration",
    )
    for row in found:
        table.add_row(
            row["kernels"],
            row["cluster"],
            row["split"],
            ", ".join("+".join(map(str, n)) for n in row["counts"].values()),
            f"{row['predicted_ms']:.1f} ms",
            f"{row['measured_ms']:.1f} ms",
            f"{row['predicted_ms'] / row['measured_ms']:.3f}",
            f"{row['spread']:.1%} apart",
            f"{row['calibration_s']:.0f} s",
        )
    rich.console.Console(width=150).print(table)


if __name__ == "__main__":
    main()
