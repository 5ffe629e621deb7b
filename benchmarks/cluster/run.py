"""Times training steps of whole models on clusters of this machine's cores.

Each case is a model and a cluster. The systems are measured one after the
other, baselines both before and after all others: plain Keras on the first
node (`alone`), and this package there (`one`), beside which is known what
another node adds. This needs root.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import psutil
import rich.console
import rich.progress
from cases import CASES
from cases import Case
from nodes import cluster
from systems import BASELINES
from systems import OURS
from systems import SYSTEMS
from systems import Failed
from systems import measure
from table import compared
from table import in_words
from table import remarks
from table import table_of

# Systems that need an interpreter with PyTorch.
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
        nargs="*",
        default=["auto"],
        help="of convpar, one or several: auto, equal, shares (of the nodes), "
        "a file or JSON",
    )
    parser.add_argument("--algorithm", help="of convpar's convolutions")
    parser.add_argument("--wire-dtype", help="of convpar's feature maps")
    parser.add_argument(
        "--wire", default="float32", help="of what replicas exchange"
    )
    parser.add_argument(
        "--unequal",
        choices=("batches", "steps"),
        default="batches",
        help="of what faster nodes of diloco have more",
    )
    parser.add_argument("--moments", help="of convpar's normalizations")
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
    """The cases to measure, with the values that options give them."""
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
    """Rows of a case; baselines are measured last as well as first."""
    order = []
    for system in options.systems:
        if system == "convpar":
            order += [(system, plan) for plan in options.plan]
        elif system in OURS:
            order.append((system, options.plan[0]))
        else:
            order.append((system, None))
    baselines = [pair for pair in order if pair[0] in BASELINES]
    others = [pair for pair in order if pair not in baselines]
    order = [*baselines, *others, *(reversed(baselines) if others else ())]
    for system, plan in order:
        row = {
            "case": case.name,
            **dataclasses.asdict(case),
            "system": f"{system} {plan}" if system == "convpar" else system,
        }

        def show(line, name=row["system"]):
            progress(f"{case.name}: {name}: {line}")

        show("looking who else works on this machine")
        row["others"] = psutil.cpu_percent(2.0) / 100
        try:
            with cluster(case.shares, case.rate) as nodes:
                programs = SYSTEMS[system](nodes, case, options, plan)
                row |= measure(programs, options.timeout, show)
        except Failed as error:
            row["error"] = str(error)
        yield row


def main():
    options = arguments()
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
            "--torch-python).",
            markup=False,
        )
        options.systems = [s for s in options.systems if s not in OF_TORCH]
        if not options.systems:
            sys.exit(1)
    try:
        found = run(chosen(options), options, console)
    except (ValueError, OSError) as error:
        sys.exit(str(error))
    rich.console.Console(width=160).print(table_of(found))
    remarks(found)
    sys.exit(any("error" in row for row in found))


def run(cases, options, console):
    """The rows of all cases; each is written as soon as it is there."""
    found = []
    bar = rich.progress.Progress(
        rich.progress.TextColumn("{task.completed}/{task.total}"),
        rich.progress.TimeElapsedColumn(),
        rich.progress.TextColumn("{task.description}", markup=False),
        console=console,
    )
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
                console.print(
                    in_words(row), markup=False, highlight=False, soft_wrap=True
                )
                if options.json:
                    options.json.write_text(
                        json.dumps([*found, *rows], indent=1) + "\n"
                    )
            found += rows
            bar.advance(task)
    return found


if __name__ == "__main__":
    main()
