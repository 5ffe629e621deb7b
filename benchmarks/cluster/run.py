"""Training steps of whole models on clusters made of this machine's cores.

Each case is a model and a cluster; the systems are measured one after the
other, plain Keras on the first node before and after all others. Needs root.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys

import psutil
import rich.console
import rich.progress
import rich.table
from cases import CASES
from cases import Case
from nodes import cluster
from systems import SYSTEMS
from systems import Failed
from systems import measure

# That a PyTorch must be asked for.
OF_TORCH = ("ddp", "torch")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--cases",
        nargs="*",
        choices=CASES,
        metavar="CASE",
        help=", ".join(CASES),
    )
    parser.add_argument(
        "--models",
        nargs="*",
        help="cases of these models, and of the options below, instead",
    )
    parser.add_argument("--pixels", type=int)
    parser.add_argument("--batch", type=int, help="of all nodes together")
    parser.add_argument("--classes", type=int)
    parser.add_argument(
        "--shares", type=float, nargs="*", help="of a core, for each node"
    )
    parser.add_argument("--rate", help="of links, e.g. 1gbit; none: no limit")
    parser.add_argument("--warm-up", type=int)
    parser.add_argument("--steps", type=int, help="that are timed")
    parser.add_argument(
        "--systems", nargs="*", choices=SYSTEMS, default=list(SYSTEMS)
    )
    parser.add_argument(
        "--plan",
        default="equal",
        help="equal, shares (of the nodes), auto, calibrated, a file or JSON",
    )
    parser.add_argument("--algorithm", help="of convpar's convolutions")
    parser.add_argument("--wire-dtype", help="of convpar's feature maps")
    parser.add_argument(
        "--torch-python",
        default=sys.executable,
        help="an interpreter that has torch and torchvision",
    )
    parser.add_argument(
        "--timeout", type=float, default=900.0, help="of one system, seconds"
    )
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if options.warm_up == 0 or options.steps == 0:
        parser.error("Expected at least one step to warm up, and one to time.")
    return options


def chosen(options):
    """Cases, with whatever options say in their place."""
    fields = {field.name for field in dataclasses.fields(Case)}
    given = {
        name: value
        for name, value in vars(options).items()
        if name in fields and value is not None
    }
    if "shares" in given:
        given["shares"] = tuple(given["shares"])
    if given.get("rate") == "none":
        given["rate"] = None
    if options.models is None:
        cases = [CASES[name] for name in options.cases or CASES]
    else:
        of_model = {case.model: case for case in reversed(CASES.values())}
        cases = [
            of_model.get(name, dataclasses.replace(CASES["vgg"], model=name))
            for name in options.models
        ]
    return [dataclasses.replace(case, **given) for case in cases]


def has_torch(python):
    try:
        done = subprocess.run(
            [python, "-c", "import torch, torchvision"], capture_output=True
        )
    except OSError:
        return False
    return done.returncode == 0


def measured(case, options, progress):
    """Rows of a case; plain Keras is measured last as well as first."""
    asked = options.systems
    order = [name for name in asked if name != "alone"]
    if "alone" in asked:
        order = ["alone", *order, *(["alone"] if order else [])]
    for system in order:
        row = {"case": case.name, **dataclasses.asdict(case), "system": system}
        if system == "convpar":
            row["plan"] = options.plan

        def show(line, system=system):
            progress(f"{case.name}: {system}: {line}")

        show("looking who else works on this machine")
        row["others"] = psutil.cpu_percent(2.0) / 100

        try:
            with cluster(case.shares, case.rate) as nodes:
                row |= measure(system, nodes, case, options, show)
        except Failed as error:
            row["error"] = str(error)
        yield row


def compared(rows):
    """The rows of a case beside plain Keras, and the noise between its two."""
    times = [
        r["step_s"] for r in rows if r["system"] == "alone" and "step_s" in r
    ]
    if not times:
        return
    base = sum(times) / len(times)
    for row in rows:
        row["drift"] = times[-1] / times[0] - 1 if len(times) > 1 else None
        if "step_s" in row:
            row["speedup"] = base / row["step_s"]


def table_of(rows):
    table = rich.table.Table(
        "case", "system", "step", "quartiles", "beside alone"
    )
    table.add_column("MB in, out")
    table.add_column("by theory")
    table.add_column("predicted")
    table.add_column("first losses")
    before = None
    for row in rows:
        case = "" if row["case"] == before else row["case"]
        before = row["case"]
        if "error" in row:
            table.add_row(case, row["system"], "failed")
            continue
        low, high = row["quartiles_s"]
        table.add_row(
            case,
            row["system"],
            f"{row['step_s'] * 1e3:.0f} ms",
            f"{(high - low) / row['step_s']:.1%} apart",
            f"{row['speedup']:.2f}x" if "speedup" in row else "",
            pair(row, "received_mb", "sent_mb"),
            pair(row, "received_theory_mb", "sent_theory_mb"),
            f"{row['predicted_s'] * 1e3:.0f} ms"
            if row.get("predicted_s")
            else "",
            " ".join(f"{loss:.4f}" for loss in row["losses"]),
        )
    return table


def pair(row, first, second):
    if first not in row:
        return ""
    return f"{row[first]:.1f}, {row[second]:.1f}"


def main():
    options = arguments()
    # Whatever ends this program has to take the cluster away.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = rich.console.Console(stderr=True)
    if os.geteuid():
        sys.exit(
            "Expected root, who may make network namespaces and control "
            f"groups. Received: user {os.geteuid()}."
        )
    if set(OF_TORCH) & set(options.systems) and not has_torch(
        options.torch_python
    ):
        console.print(
            f"Without {' and '.join(OF_TORCH)}: {options.torch_python} has no "
            "torch and torchvision (pip install 'tf_convpar[peers]', or "
            "--torch-python)."
        )
        options.systems = [s for s in options.systems if s not in OF_TORCH]
    found = []
    bar = rich.progress.Progress(
        rich.progress.TextColumn("{task.completed}/{task.total}"),
        rich.progress.TimeElapsedColumn(),
        rich.progress.TextColumn("{task.description}", markup=False),
        console=console,
    )
    cases = chosen(options)
    with bar:
        task = bar.add_task("", total=len(cases))
        for case in cases:
            rows = []
            for row in measured(
                case,
                options,
                lambda text: bar.update(task, description=text),
            ):
                rows.append(row)
                compared(rows)
                if "error" in row:
                    console.print(row["error"], markup=False, highlight=False)
                if options.json:
                    options.json.write_text(
                        json.dumps([*found, *rows], indent=1) + "\n"
                    )
            found += rows
            bar.advance(task)
    rich.console.Console(width=160).print(table_of(found))
    busiest = max(row["others"] for row in found)
    if busiest > 0.1:
        print(
            "These are no measurements: something else had up to "
            f"{busiest:.0%} of the cores before one began."
        )
    for case, drift in {r["case"]: r.get("drift") for r in found}.items():
        if drift is not None:
            print(
                f"{case}: plain Keras alone took {drift:+.1%} the second time"
            )
    sys.exit(any("error" in row for row in found))


if __name__ == "__main__":
    main()
