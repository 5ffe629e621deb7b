"""Results of a simulation for the values of one setting."""

from __future__ import annotations

import csv
import dataclasses
import math
import os
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any
from typing import Generic
from typing import TypeVar

from tf_convpar.files import atomic
from tf_convpar.planner.vary import Value

if TYPE_CHECKING:
    from rich.table import Table

# Names of the settings that vary, for readers.
HEADS = {
    "devices": "Devices",
    "bandwidth": "Links",
    "batch": "Batch",
    "kernels": "Kernels",
    "heterogeneity": "Ratio of\nspeeds",
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One simulated cluster.

    Attributes:
        value: Value of the setting that varies: a number of devices, bytes per
            second, samples, or the ratio of the fastest speed to the slowest;
            the label of numbers of kernels.
        label: The value as text for readers.
    """

    value: Value | str
    label: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, where an infinite value is its label."""
        infinite = self.value == math.inf
        return {
            "value": self.label if infinite else self.value,
            "label": self.label,
        }


R = TypeVar("R", bound=Row)
# Heads of columns, and what to write of a row.
Columns = Sequence[tuple[str, Callable[[R], str]]]


@dataclasses.dataclass(frozen=True)
class Simulation(Generic[R]):
    """Predicted steps for the values of one setting.

    ```python
    simulation = star_simulation.simulate(cluster, "bandwidth")
    rich.print(simulation.table())
    simulation.csv("bandwidth.csv")
    ```

    Attributes:
        sweep: Name of the setting that varies.
        rows: One row for each value, in the order of the values.
        about: Cluster and network in a line of text.
        columns: Columns of the table besides the value.
    """

    sweep: str
    rows: tuple[R, ...]
    about: str
    columns: Columns[R] = dataclasses.field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "sweep": self.sweep,
            "about": self.about,
            "rows": [row.to_dict() for row in self.rows],
        }

    def table(self) -> Table:
        """A table for a terminal of 80 columns."""
        from rich import box
        from rich.markup import escape
        from rich.table import Table

        table = Table(
            title=escape(self.about),
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            padding=(0, 0),
            show_edge=False,
        )
        for head in (HEADS[self.sweep], *(head for head, _ in self.columns)):
            table.add_column(head, justify="right", vertical="bottom")
        for row in self.rows:
            cells = (row.label, *(cell(row) for _, cell in self.columns))
            table.add_row(*map(escape, cells))
        return table

    def csv(self, path: str | os.PathLike[str]) -> None:
        """Writes all rows as CSV; times are seconds.

        The last columns are values by device or by way, such as `joules cpu:0`;
        a cell is empty where a row has no such value.
        """
        rows = [_flat(row.to_dict()) for row in self.rows]
        heads = [
            dict.fromkeys(name for row in rows for name in row[part])
            for part in range(2)
        ]
        with (
            atomic(path) as part,
            open(part, "w", newline="", encoding="utf-8") as file,
        ):
            out = csv.writer(file)
            out.writerow([*heads[0], *heads[1]])
            for values, parts in rows:
                out.writerow(
                    [values[name] for name in heads[0]]
                    + [parts.get(name, "") for name in heads[1]]
                )


def _flat(row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A row's plain values, and those of its mappings under longer names."""
    values: dict[str, Any] = {}
    parts: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            kind = name.removesuffix("_by_device")
            parts |= {f"{kind} {key}": one for key, one in value.items()}
        else:
            values[name] = value
    return values, parts
