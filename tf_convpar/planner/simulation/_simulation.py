"""What a simulation found, as a table, a file or a picture."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import math
import os
import pathlib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from rich.table import Table


@dataclasses.dataclass(frozen=True)
class Row:
    """One simulated cluster, with the plan that is best for it.

    Attributes:
        value: Of what was swept: devices, bytes per second, images, kernels
            as `"500:1500"`, or the ratio of the fastest speed to the
            slowest.
        label: The same for readers.
        devices: How many there are.
        used: How many of them have kernels.
        step_s: Seconds of a step.
        chief_s: On the chief alone.
        single_s: With all kernels on the one device that is best for that,
            the rest of the network on the chief.
        single: That device.
        equal_s: With equal numbers of kernels on all devices.
        ideal: The speedup, over the chief alone, of devices that split every
            pass in proportion to their speeds, and of links that take no
            time: Amdahl's law.
        capacity: What all devices do of the convolutions in a second,
            relative to the chief.
        sent_bytes: Over all links.
        busiest_device: The one with the most to do.
        device_busy: The part of the step in which it has.
        busiest_link: Likewise; empty if nothing is sent.
        link_busy: Likewise.
        joules: Of a step, all devices; None if any's power is not known.
        joules_by_device: Of those whose power is known.
    """

    value: float | str
    label: str
    devices: int
    used: int
    step_s: float
    chief_s: float
    single_s: float
    single: str
    equal_s: float
    ideal: float
    capacity: float
    sent_bytes: int
    busiest_device: str
    device_busy: float
    busiest_link: str
    link_busy: float
    joules: float | None
    joules_by_device: Mapping[str, float]

    @property
    def speedup(self) -> float:
        """Over the chief alone."""
        return self.chief_s / self.step_s

    @property
    def speedup_of_best(self) -> float:
        """Over the best single device."""
        return self.single_s / self.step_s

    @property
    def efficiency(self) -> float:
        """Speedup by capacity; with equal devices, by their number."""
        return self.speedup / self.capacity

    @property
    def gain(self) -> float:
        """How many times as long the step of an equal split takes."""
        return self.equal_s / self.step_s

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without infinities, which JSON has no word for."""
        value = dataclasses.asdict(self)
        value.update(
            speedup=self.speedup,
            speedup_of_best=self.speedup_of_best,
            efficiency=self.efficiency,
            gain=self.gain,
        )
        if isinstance(self.value, float) and math.isinf(self.value):
            value["value"] = self.label
        return value


@dataclasses.dataclass(frozen=True)
class Simulation:
    """Steps over one thing that changes.

    ```python
    found = simulate(describe(network()), "bandwidth")
    rich.print(found.table())
    found.csv("bandwidth.csv")
    found.draw("bandwidth.png")
    ```

    Attributes:
        sweep: What changes: one of `simulation._simulate.SWEEPS`.
        rows: In the order of its values.
        about: The cluster and the network, in a line.
    """

    sweep: str
    rows: tuple[Row, ...]
    about: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "sweep": self.sweep,
            "about": self.about,
            "rows": [row.to_dict() for row in self.rows],
        }

    def table(self) -> Table:
        """For a terminal."""
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
        """Writes all rows, the joules of each device in columns of their own.

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

        Beside it the energy of a step, where power is known. For unequal
        devices, the times of the plan and of an equal split.

        Args:
            path: The image to write; its ending says in which format.
        """
        from tf_convpar.planner.simulation import _simulation_plot

        _simulation_plot.draw(self, path)

    def _columns(self) -> list[tuple[str, Callable[[Row], str]]]:
        """Heads, and what to write of a row: what fits 80 columns."""
        columns: list[tuple[str, Callable[[Row], str]]] = [
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
                lambda r: f"{_short(r.busiest_device)} {r.device_busy:.0%}",
            ),
            ("Links\nbusy", lambda r: f"{r.link_busy:.0%}"),
        ]
        if self.sweep == "heterogeneity":
            columns[3:5] = [
                ("Equal\nsplit, ms", lambda r: _number(1e3 * r.equal_s)),
                ("Gain", lambda r: _number(r.gain)),
            ]
        # Where the chief is the best single device this says nothing new.
        if any(row.single != self.rows[0].single for row in self.rows) or any(
            row.single_s < row.chief_s for row in self.rows
        ):
            columns.insert(
                3, ("Over\nbest", lambda r: f"{r.speedup_of_best:.2f}")
            )
        if any(row.joules is not None for row in self.rows):
            columns.append(("Joules", lambda r: _number(r.joules)))
        return columns


# What is swept, for readers.
HEADS = {
    "devices": "Devices",
    "bandwidth": "Links",
    "batch": "Batch",
    "kernels": "Kernels",
    "heterogeneity": "Ratio of\nspeeds",
}


@contextlib.contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """A file beside `path` to write, which takes its place when all is well."""
    target = pathlib.Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield part
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def _short(device: str) -> str:
    """TensorFlow's name without words that are the same for all."""
    return device.removeprefix("/job:").replace("/replica:0", "")


def _number(value: float | None) -> str:
    """Three digits or more, no exponents; nothing for None."""
    if value is None:
        return ""
    digits = 0 if not value else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 3)}f}"
