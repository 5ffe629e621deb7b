"""What a simulation found, as a table, a file or a picture."""

from __future__ import annotations

import csv
import dataclasses
import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING
from typing import Any

from tf_convpar.files import whole
from tf_convpar.machines import short
from tf_convpar.planner.star.simulation import _plot
from tf_convpar.planner.star.simulation._row import SimulationRow

if TYPE_CHECKING:
    from rich.table import Table


@dataclasses.dataclass(frozen=True)
class Simulation:
    """Predicted steps for the values of one setting.

    ```python
    found = simulate(describe(network()), "bandwidth")
    rich.print(found.table())
    found.csv("bandwidth.csv")
    found.draw("bandwidth.png")
    ```

    Attributes:
        sweep: Name of the setting: one of `simulation._sweep.SWEEPS`.
        rows: One row for each value, in the order of the values.
        about: Cluster and network in a line of text.
    """

    sweep: str
    rows: tuple[SimulationRow, ...]
    about: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "sweep": self.sweep,
            "about": self.about,
            "rows": [row.to_dict() for row in self.rows],
        }

    def table(self) -> Table:
        """A table for a terminal."""
        from rich import box
        from rich.markup import escape
        from rich.table import Table

        columns = self._columns()
        table = Table(
            title=escape(self.about),
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            padding=(0, 0),
            show_edge=False,
        )
        for head, _ in columns:
            table.add_column(head, justify="right", vertical="bottom")
        for row in self.rows:
            table.add_row(*(escape(cell(row)) for _, cell in columns))
        return table

    def csv(self, path: str | os.PathLike[str]) -> None:
        """Writes all rows as CSV; the joules of each device are a column.

        A device that a row lacks has an empty cell there. Times are seconds.
        """
        names = list(
            dict.fromkeys(n for row in self.rows for n in row.joules_by_device)
        )
        with (
            whole(path) as part,
            open(part, "w", newline="", encoding="utf-8") as file,
        ):
            out = csv.writer(file)
            heads = None
            for row in self.rows:
                cells = row.to_dict()
                joules = cells.pop("joules_by_device")
                if heads is None:
                    heads = list(cells)
                    out.writerow(heads + [f"joules {name}" for name in names])
                out.writerow(
                    [cells[head] for head in heads]
                    + [joules.get(name, "") for name in names]
                )

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Draws the speedup, with Amdahl's law as a dashed line.

        The sweep of unequal devices shows times instead: those of the plan, of
        an equal split and of the fastest device alone. Where all power is
        known, the energy of a step is drawn beside it.

        Args:
            path: Image file to write. Its ending says in which format.
        """
        _plot.draw(self.sweep, self.rows, self.about, path)

    def _columns(self) -> list[tuple[str, Callable[[SimulationRow], str]]]:
        """Heads of columns, and what to write of a row; all fit 80 columns."""
        columns: list[tuple[str, Callable[[SimulationRow], str]]] = [
            (HEADS[self.sweep], lambda r: r.label),
            ("Step,\nms", lambda r: _number(1e3 * r.step_s)),
            ("Speed-\nup", lambda r: f"{r.speedup:.2f}"),
            ("Ideal", lambda r: f"{r.ideal:.2f}"),
            ("Eff.", lambda r: f"{r.efficiency:.0%}"),
            (
                "In\nuse",
                lambda r: (
                    f"{r.used}"
                    if self.sweep == "devices"
                    else f"{r.used}/{r.devices}"
                ),
            ),
            ("Sent,\nMB", lambda r: _number(r.sent_bytes / 1e6)),
            (
                "Busiest\ndevice",
                lambda r: f"{short(r.busiest_device)} {r.device_busy:.0%}",
            ),
            ("Links\nbusy", lambda r: f"{r.link_busy:.0%}"),
        ]
        if self.sweep == "heterogeneity":
            columns[3:5] = [
                ("Equal\nsplit, ms", lambda r: _number(1e3 * r.equal_s)),
                ("Gain", lambda r: _number(r.gain)),
            ]
        # Where the chief is the best single device, it says nothing new.
        if any(row.single != self.rows[0].single for row in self.rows) or any(
            row.single_s < row.chief_s for row in self.rows
        ):
            columns.insert(
                3, ("Over\nbest", lambda r: f"{r.speedup_of_best:.2f}")
            )
        if any(row.joules is not None for row in self.rows):
            columns.append(("Joules", lambda r: _number(r.joules)))
        return columns


# Names of the settings that vary, for readers.
HEADS = {
    "devices": "Devices",
    "bandwidth": "Links",
    "batch": "Batch",
    "kernels": "Kernels",
    "heterogeneity": "Ratio of\nspeeds",
}


def _number(value: float | None) -> str:
    """A number of three digits or more, without exponent; empty for None."""
    if value is None:
        return ""
    digits = 0 if not value else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 3)}f}"
