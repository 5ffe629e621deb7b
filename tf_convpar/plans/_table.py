"""Plans as tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_convpar.machines import short
from tf_convpar.plans._prediction import busiest
from tf_convpar.plans._type import Plan
from tf_convpar.units import seconds_text

if TYPE_CHECKING:
    from rich.table import Table

# The most columns of devices and the most rows that fit a terminal.
_COLUMNS = 4
_ROWS = 24


def table(plan: Plan) -> Table:
    """A table with a row for each layer and a column for each device in use.

    ```python
    rich.print(table(plan))
    ```

    The split of a layer says what its numbers are: kernels, or samples of the
    step. In plans of more than 24 layers, neighbours that are cut alike share a
    row. Below stand the predicted step, the busiest device and link, and the
    step of one device alone and, where that is known, of equal shares.
    """
    from rich.markup import escape
    from rich.table import Table

    top = Table(
        title="Kernels, or samples, of each device",
        title_justify="left",
        title_style="bold",
    )
    top.add_column("Layer", no_wrap=True)
    top.add_column("Split")
    top.add_column("Of", justify="right")
    order = [d for d, name in enumerate(plan.devices) if name in plan.used]
    first, more = order[:_COLUMNS], order[_COLUMNS:]
    for d in first:
        top.add_column(escape(short(plan.devices[d])), justify="right")
    if more:
        top.add_column(f"{len(more)} more, each", justify="right")
    for layers in _groups(plan):
        counts = plan.allocation[layers[0]]
        cells = [_count(counts[d]) for d in first]
        if more:
            rest = [counts[d] for d in more]
            low, high = min(rest), max(rest)
            cells.append(_count(low) if low == high else f"{low}-{high}")
        name = layers[0]
        if len(layers) > 1:
            name += f"\n  to {layers[-1]}, {len(layers)} layers"
        way = plan.way(layers[0])
        top.add_row(escape(name), way, str(sum(counts)), *cells)
    below = Table.grid(padding=(0, 2))
    for label, text in summary(plan):
        below.add_row(label, escape(text))
    # This is not a caption of the table, which would be cut to its width.
    both = Table.grid()
    both.add_row(top)
    both.add_row(below)
    return both


def _groups(plan: Plan) -> list[list[str]]:
    """The layers of each row: many layers share rows if they are cut alike."""
    groups: list[list[str]] = []
    for layer, counts in plan.allocation.items():
        cut = plan.way(layer), counts
        if groups and len(plan) > _ROWS:
            last = groups[-1][-1]
            if cut == (plan.way(last), plan.allocation[last]):
                groups[-1].append(layer)
                continue
        groups.append([layer])
    return groups


def summary(plan: Plan) -> list[tuple[str, str]]:
    """Labels and texts: what the plan takes, and what alternatives take."""
    rows = []
    if plan.prediction is None:
        rows.append(("Predicted step", "none: the counts were changed by hand"))
    else:
        step = plan.prediction.step_s
        rows.append(("Predicted step", seconds_text(step)))
        for label, links in (("Busiest device", False), ("Busiest link", True)):
            busy = busiest(plan.prediction, links=links)
            if busy and step:
                rows.append(
                    (label, f"{short(busy[0])}, {busy[1] / step:.0%} of it")
                )
    if plan.best_single is None:
        rows.append(("Best single device", "none has the memory"))
    else:
        name, seconds = plan.best_single
        rows.append(
            ("Best single device", f"{seconds_text(seconds)}, {short(name)}")
        )
    if plan.equal_s is not None:
        rows.append(("Equal split", seconds_text(plan.equal_s)))
    elif any(limit is not None for limit in plan.memory_bytes) and any(
        each for _, each in plan.layer_bytes.values()
    ):
        rows.append(("Equal split", "needs more memory than there is"))
    return rows


def _count(number: int) -> str:
    return str(number) if number else "-"
