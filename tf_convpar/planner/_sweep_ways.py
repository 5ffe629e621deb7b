"""Compares ways to train while one setting varies."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

import keras

from tf_convpar.planner import work_keys
from tf_convpar.planner._calibration import Calibration
from tf_convpar.planner._compare import legend
from tf_convpar.planner._compare import ways_of
from tf_convpar.planner._link import Link
from tf_convpar.planner._sweep import SWEEPS
from tf_convpar.planner._sweep import VALUES
from tf_convpar.planner._ways_to_train import NAMES
from tf_convpar.planner._ways_to_train import NUMBERS
from tf_convpar.planner._ways_to_train import Arguments
from tf_convpar.planner._ways_to_train import Way
from tf_convpar.planner._ways_to_train import check_names
from tf_convpar.planner.call_ways import Settings
from tf_convpar.planner.simulation import HEADS
from tf_convpar.planner.simulation import Row
from tf_convpar.planner.simulation import Simulation
from tf_convpar.planner.vary import varied
from tf_convpar.sharding import calls_of
from tf_convpar.units import three_digits

if TYPE_CHECKING:
    from rich.table import Table


@dataclasses.dataclass(frozen=True)
class WaysRow(Row):
    """The ways to train on one cluster.

    Attributes:
        ways: The ways, those with most samples a second first.
    """

    ways: tuple[Way, ...]

    def of(self, name: str) -> Way | None:
        """The way of that name, if there is one."""
        return next((way for way in self.ways if way.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; values of ways are by the ways' names."""
        numbers = ("samples_per_s", "step_s", "received_bytes", "numbers")
        fastest = self.ways[0].name if self.ways else None
        return (
            super().to_dict()
            | {"fastest": fastest}
            | {
                what: {way.name: getattr(way, what) for way in self.ways}
                for what in numbers
            }
        )


@dataclasses.dataclass(frozen=True)
class WaySimulation(Simulation[WaysRow]):
    """Samples a second of each way to train, for the values of a setting."""

    @property
    def names(self) -> dict[str, str]:
        """Names of all ways, and whose numbers they give, in that order."""
        by_name = {way.name: way for row in self.rows for way in row.ways}
        kinds = tuple(NUMBERS)

        def place(way: Way) -> tuple[int, int, int]:
            name = way.method if way.kind == "replicas" else way.kind
            position = NAMES.index(name or way.kind)
            return kinds.index(way.numbers), position, len(way.groups)

        return {
            way.name: way.numbers for way in sorted(by_name.values(), key=place)
        }

    def table(self) -> Table:
        """A row for each way, a column for each value."""
        from rich import box
        from rich.markup import escape
        from rich.table import Table

        table = Table(
            title=escape(self.about),
            title_justify="left",
            title_style="bold",
            caption="Samples a second; *: most. Nothing: not split, or not "
            "possible.\n"
            + legend([way for row in self.rows for way in row.ways]),
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 1),
            show_edge=False,
        )
        table.add_column(HEADS[self.sweep])
        table.add_column("Numbers")
        for row in self.rows:
            table.add_column(row.label, justify="right")
        for name, numbers in self.names.items():
            cells = [_cell(row, name) for row in self.rows]
            table.add_row(name, numbers, *cells)
        return table


def _cell(row: WaysRow, name: str) -> str:
    way = row.of(name)
    if way is None:
        return ""
    star = "*" if name == row.ways[0].name else ""
    return f"{star}{three_digits(way.samples_per_s)}"


def sweep_ways(
    model: keras.Model,
    calibration: Calibration,
    over: str = "bandwidth",
    values: Sequence[float] | None = None,
    wire_dtype: str | None = None,
    moments: str = "all",
    ways: Sequence[str] | None = None,
    about: str = "",
    report: Callable[[str], None] = lambda label: None,
    **methods: Any,
) -> WaySimulation:
    """The ways to train for each value of one setting of a cluster.

    ```python
    simulation = sweep_ways(model, calibration, "bandwidth", [1.25e6, 1.25e8])
    simulation.rows[0].ways[0].name  # the fastest way at 10 Mbit/s
    ```

    Args:
        model: Model that was measured.
        calibration: Measurements, or what `described` or `machines` says.
        over: Setting that varies: `"devices"`, `"bandwidth"` or `"batch"`, as
            for `sweep`.
        values: Values of that setting; None for the usual ones.
        wire_dtype: As for `compare`.
        moments: As for `compare`.
        ways: As for `compare`.
        about: Model and cluster in a line of text.
        report: Function that is called with each value, as text for readers.
        **methods: As for `compare`.

    Raises:
        ValueError: The setting, a way or a value is not possible.
        RuntimeError: A plan has no proof within half a minute.
    """
    names, arguments = check_names(ways), Arguments(**methods)
    settings = Settings(wire_dtype, moments)
    graph = calls_of(model)
    work_keys.check(graph, calibration.model)
    wanted = VALUES.get(over, ()) if values is None else values
    rows = tuple(
        WaysRow(
            value, label, ways_of(graph, changed, settings, names, arguments)
        )
        for value, label, changed in varied(
            calibration, over, SWEEPS, wanted, report
        )
    )
    return WaySimulation(over, rows, about, ())


def machines(
    calibration: Calibration,
    speeds: Sequence[float],
    bytes_per_s: float,
    latency_s: float,
) -> Calibration:
    """A cluster of machines like the first one that was measured.

    ```python
    machines(calibration, [1, 0.6, 0.4], 125e6, 1e-4)
    ```

    Args:
        calibration: Measurements of one device at least. The cost of serving
            transfers is known only if there were two.
        speeds: How fast each machine is, relative to that device.
        bytes_per_s: Rate of each machine's interface.
        latency_s: Seconds of a small message.

    Raises:
        ValueError: There are no speeds, or one is not above 0.
    """
    if not speeds or not all(0 < speed < math.inf for speed in speeds):
        raise ValueError(
            "Expected a speed above 0 for each machine, such as 1,0.6,0.4. "
            f"Received: {tuple(speeds)}."
        )
    first = calibration.devices[0]
    devices = tuple(
        dataclasses.replace(first.times(1 / speed), name=f"machine:{i}")
        for i, speed in enumerate(speeds)
    )
    return dataclasses.replace(
        calibration,
        devices=devices,
        links=tuple(
            Link(a.name, b.name, bytes_per_s, latency_s)
            for a, b in itertools.permutations(devices, 2)
        ),
    )
