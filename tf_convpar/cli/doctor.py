"""`convpar doctor`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tf_convpar.cli._measuring_options import progress
from tf_convpar.cli._shared import as_json
from tf_convpar.cli._shared import messages_only
from tf_convpar.cli._shared import patient
from tf_convpar.cli._shared import print_json
from tf_convpar.cli._shared import without_chatter

if TYPE_CHECKING:
    from tf_convpar.cli._checks import Finding
    from tf_convpar.cluster.spec import Cluster
    from tf_convpar.cluster.spec import Task

# Seconds for the samples of one measurement.
_BUDGET_S = 0.05
# Seconds in which a task answers another one that it reaches.
_ANSWER_S = 5.0


@click.command(name="doctor")
@patient
@as_json
def command(timeout_s: float, as_json: bool) -> None:
    """Say what is wrong on this machine, and between it and its workers.

    \b
      convpar doctor

    One line for each thing, with what to do about it: oneDNN that is off, one
    thread, compiled operations that are not in use. On the chief of a cluster
    in TF_CONFIG, before its program starts, also of the workers, which have to
    run: whether they answer, and reach each other, their versions, their
    clocks, and how fast the links are. Exit code 0 says that all is well, 1
    that something is not.
    """  # noqa: D301 (click keeps the lines after a backspace as they are)
    from tf_convpar.cluster import spec

    with messages_only():
        cluster = spec.resolve()
    with without_chatter():
        import tensorflow as tf

        # A build with CUDA says now that there is no GPU.
        tf.config.list_physical_devices()
    with progress("Looking at this machine and its workers") as report:
        report("this machine")
        findings = list(_findings(cluster, timeout_s, report))
    if as_json:
        print_json([dataclasses.asdict(finding) for finding in findings])
    else:
        _print(findings)
    sys.exit(0 if all(finding.well for finding in findings) else 1)


def _findings(
    cluster: Cluster | None, timeout_s: float, report: Callable[[str], None]
) -> Iterator[Finding]:
    from tf_convpar.cli import _checks
    from tf_convpar.cluster import status

    here = "here" if cluster is None else _name(cluster.task)
    yield _checks.of_ops(here)
    if cluster is None or not cluster.others:
        yield from _checks.of_device("/device:CPU:0", here)
        return
    answering = []
    report("asking the other tasks")
    for task, answer in status.ask(cluster.others, timeout_s, False).items():
        silent = isinstance(answer, str)
        yield _checks.Finding(
            _name(task),
            "answer",
            not silent,
            f"At {task.address}: {answer}. Run `convpar worker` there, with "
            "this cluster in its TF_CONFIG."
            if silent
            else f"It answers at {task.address}.",
        )
        answering += [] if silent else [task]
    if not cluster.is_chief or not answering:
        yield from _checks.of_device("/device:CPU:0", here)
    else:
        yield from _of_cluster(cluster, answering, timeout_s, report)


def _of_cluster(
    cluster: Cluster,
    answering: Sequence[Task],
    timeout_s: float,
    report: Callable[[str], None],
) -> Iterator[Finding]:
    """Joins the cluster, as its program would, and looks at its workers."""
    import tensorflow as tf

    from tf_convpar.cli import _checks
    from tf_convpar.cluster import joining
    from tf_convpar.cluster.reach import cut_off_pairs
    from tf_convpar.planner.measure import Clock
    from tf_convpar.strategy import devices

    here = _name(cluster.task)
    try:
        joining.connect(cluster, timeout_s, len(answering))
    except OSError as error:
        yield _checks.Finding(here, "join", False, error.strerror or str(error))
        return
    report("asking tasks for one another")
    cut_off = cut_off_pairs(cluster.chief, answering, _ANSWER_S)
    for one, other in cut_off:
        yield _checks.Finding(
            f"{_name(one)}, {_name(other)}",
            "reach",
            False,
            f"Both answer here, but {one} and {other} do not reach each other. "
            "Open the way between them, in both directions: a firewall, a "
            "route, or a name that one of them does not know.",
        )
    if any(cluster.chief in pair for pair in cut_off):
        return  # What is measured between them would never end.
    by_task = _checks.by_task(devices.available())
    chief = by_task.pop((cluster.task.job, cluster.task.index))
    yield from _checks.of_device(chief, here)
    clock = Clock(budget_s=_BUDGET_S, report=report)
    for (job, index), device in sorted(by_task.items()):
        where = f"{job} {index}"
        report(where)
        try:
            yield from _checks.of_worker(device, chief, where)
            yield _checks.of_link(chief, device, clock)
            yield _checks.of_link(device, chief, clock)
        except tf.errors.OpError as error:
            said = error.message.partition("\n")[0]
            yield _checks.Finding(where, "answer", False, said)


def _name(task: Task) -> str:
    return f"{task.job} {task.index}"


def _print(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_column(overflow="fold")
    for finding in findings:
        mark = "[green]well[/green]" if finding.well else "[red]wrong[/red]"
        table.add_row(mark, finding.where, escape(finding.says))
    console = Console()
    console.print(table, highlight=False)
    wrong = sum(not finding.well for finding in findings)
    console.print(f"{wrong} wrong." if wrong else "All is well.")
