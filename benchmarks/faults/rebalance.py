"""What `Rebalance` gains where a worker is slowed down, in time of steps.

    sudo python benchmarks/faults/rebalance.py --output rebalance.jsonl
    python benchmarks/faults/rebalance.py --table rebalance.jsonl

A chief and two workers are nodes of equal speed (`../cluster/nodes.py`). After
a while one has a fourth of its quota, and later all of it again.
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile
import threading

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "cluster"))
sys.path.insert(0, str(HERE))

import nodes  # noqa: E402
from run import ROOT  # noqa: E402
from run import Cluster  # noqa: E402

WAYS = ("filters", "samples", "auto")
SHARE, SLOWER = 0.5, 4
LIMIT_S = 1800


class Slowed(Cluster):
    """A chief and two workers, one of which loses most of its quota."""

    def lose(self):
        """Takes it away."""
        for node in self.lost:
            nodes._limit(node.group, node.share / SLOWER)


def run(way, settings, output):
    """One chief's program: calm, slowed, and given back."""
    with (
        tempfile.TemporaryDirectory() as name,
        nodes.cluster([SHARE] * 3, None) as members,
    ):
        folder = pathlib.Path(name)
        pipes = [folder / "ask", folder / "answer"]
        for pipe in pipes:
            os.mkfifo(pipe)
        cluster = Slowed(members, "slow", folder)
        for node in cluster.others:
            cluster.start(node)
        settings = settings | {"timeline": f"{output}.{way}"}
        chief = cluster.chief.start(
            [
                *(sys.executable, HERE / "slowed.py", way),
                *(json.dumps(settings), *pipes),
            ],
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
        if code:
            print(said[-3000:], file=sys.stderr)
            raise SystemExit(f"The chief ended with {code}.")
        lines = said.splitlines()
        return json.loads(next(x for x in lines if x.startswith('{"way"')))


def best(phase):
    """Time of the convolutions beside that of calm, where shares are best.

    It is one over the sum of speeds. Without other shares all wait for the
    slowest.
    """
    return 3 / (2 + 1 / SLOWER) if phase == "slowed" else 1.0


def table(rows):
    """Markdown: milliseconds of a step, and as a multiple of calm ones."""
    head = ["spread by", "", "without", "with", "best", "shares moved after"]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        calm = row["phases"]["calm"]
        for phase, found in row["phases"].items():
            cells = [
                f"{found[key]['median'] * 1e3:.0f} ms "
                f"({found[key]['median'] / calm[key]['median']:.2f})"
                for key in ("without", "with")
            ]
            after = found["after_s"]
            lines.append(
                [
                    row["way"] if phase == "calm" else "",
                    phase,
                    *cells,
                    f"{best(phase):.2f}" if row["way"] != "auto" else "",
                    "" if after is None else f"{after:.0f} s",
                ]
            )
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = [
        f"{row['way']}: shares moved {len(row['decisions'])} times in "
        f"{row['steps']} steps; a look takes {row['looks_s'][1]:.2f} s; "
        f"weights are {row['apart']:.0e} apart."
        for row in rows
    ]
    # Which plan each phase ended with: `plan="auto"` plans again.
    for row in rows:
        for phase, found in row["phases"].items():
            spread = ", ".join(
                f"{name} by {how} {'/'.join(f'{x:.3g}' for x in own)}".rstrip()
                for name, (how, own) in found["shares"].items()
            )
            notes.append(f"{row['way']}, {phase}: {spread}")
    return "\n".join([text, "", *notes])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", help="one line of JSON for each program")
    parser.add_argument("--table", help="prints the table of such a file")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--turns", type=int, default=20, help="of 8 steps each")
    parser.add_argument("--every-s", type=float, default=10.0)
    parser.add_argument("--cooldown-s", type=float, default=60.0)
    parser.add_argument("--most-s", type=float, default=240.0, help="to wait")
    given = parser.parse_args()
    if given.table:
        text = pathlib.Path(given.table).read_text()
        print(table([json.loads(line) for line in text.splitlines()]))
        return
    names = ("turns", "every_s", "cooldown_s", "most_s")
    settings = {name: getattr(given, name) for name in names}
    rows = []
    for way in given.ways:
        print(way, file=sys.stderr)
        rows.append(run(way, settings, pathlib.Path(given.output).resolve()))
        with open(given.output, "a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
