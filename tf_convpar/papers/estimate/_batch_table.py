"""Mini-batches as a table for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tf_convpar.papers.estimate._batch import BatchRow
from tf_convpar.units import MIB

if TYPE_CHECKING:
    from rich.table import Table


def batch_table(rows: Iterable[BatchRow]) -> Table:
    """A row for each batch: times, memory, and convolutions not direct.

    ```python
    rich.print(batch_table(best_batch(step, 2**31)))
    ```
    """
    from rich.table import Table

    table = Table()
    for column in (
        "Batch",
        "Image (ms)",
        "Step (ms)",
        "Memory (MiB)",
        "Workspace (MiB)",
        "Not direct",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: BatchRow) -> tuple[str, ...]:
    memory = f"{row.memory_bytes / MIB:.0f}"
    if row.step_s is None or row.image_s is None:
        return str(row.batch), "", "does not fit", memory, "", ""
    names = [name for each in row.choices.values() for name in each.values()]
    other = sum(name != "direct" for name in names)
    return (
        str(row.batch),
        f"{row.image_s * 1e3:.2f}",
        f"{row.step_s * 1e3:.1f}",
        memory,
        f"{row.workspace_bytes / MIB:.0f}",
        f"{other} of {len(names)}",
    )
