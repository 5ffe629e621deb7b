"""Predicts steps on clusters that nobody has.

Each row has a calibration with one setting changed (`_vary`), the plan that is
best for it (`allocate`), and the step of that plan (`_cost`). This is what
`convpar plan` would say there.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

from tf_convpar.papers.star_simulation import _vary
from tf_convpar.papers.star_simulation._describe import convolutions_s
from tf_convpar.papers.star_simulation._rows import SimulationRow
from tf_convpar.papers.star_simulation._rows import columns
from tf_convpar.papers.star_simulation._rows import row_of
from tf_convpar.planner.simulation import Simulation
from tf_convpar.planner.star import StarCalibration
from tf_convpar.planner.vary import Sweep
from tf_convpar.planner.vary import Value
from tf_convpar.planner.vary import mbit
from tf_convpar.planner.vary import varied
from tf_convpar.planner.vary import with_bandwidth
from tf_convpar.planner.vary import with_devices

SWEEPS: Mapping[str, Sweep[StarCalibration]] = {
    "devices": with_devices,
    "bandwidth": with_bandwidth,
    "batch": _vary.with_batch,
    "kernels": _vary.with_kernels,
    "heterogeneity": _vary.with_spread,
}
VALUES: Mapping[str, tuple[Value, ...]] = {
    "devices": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64),
    "bandwidth": mbit(10, 30, 100, 300, 1e3, 2.5e3, 1e4, 4e4, 1e5),
    "batch": (16, 32, 64, 128, 256, 512, 1024),
    "kernels": ((50, 500), (150, 800), (300, 1000), (500, 1500)),
    "heterogeneity": (1, 2, 3, 4, 6, 8, 12, 16),
}


def simulate(
    calibration: StarCalibration,
    sweep: str = "devices",
    values: Sequence[Value] | None = None,
    quantum: int | None = None,
    report: Callable[[str], None] = lambda label: None,
) -> Simulation[SimulationRow]:
    """Predicts the step for each value of one setting.

    ```python
    cluster = describe(network((500, 1500)), "8xcpu:100GFLOPS", "10Gbit")
    simulate(cluster, "devices", [1, 2, 4, 8]).rows[-1].speedup
    ```

    Args:
        calibration: A calibration that was measured, or made by `describe`.
        sweep: Setting that varies. `"devices"` is the number of devices: the
            first ones, then copies of the last. `"bandwidth"` is the rate of
            every link, in bytes per second. `"batch"` is the images of a step;
            times of computing are in proportion. `"kernels"` are those of each
            convolution, for described devices. `"heterogeneity"` is how many
            times as fast as the last device the chief is; the sum of speeds
            stays.
        values: Values of that setting; those in `VALUES` by default.
        quantum: Number of kernels in a unit that is given out; the
            calibration's by default.
        report: Function that is called with each value, as text for readers,
            before it is planned.

    Returns:
        A row for each value.

    Raises:
        ValueError: The setting is unknown, a value is not possible, or the
            calibration says nothing about it.
    """
    wanted = VALUES.get(sweep, ()) if values is None else values
    rows = tuple(
        row_of(changed, value, label, quantum)
        for value, label, changed in varied(
            calibration, sweep, SWEEPS, wanted, report
        )
    )
    about = _about(calibration, sweep, wanted)
    return Simulation(sweep, rows, about, columns(sweep, rows))


def _about(
    calibration: StarCalibration, sweep: str, values: Sequence[Value]
) -> str:
    """The cluster and the network, in a line."""
    network, facts = calibration.network, calibration.facts
    kernels = ":".join(str(c.filters) for c in network)
    if len(network.convolutions) > 4:
        kernels = f"{len(network.convolutions)} convolutions"
    words = []
    if sweep != "kernels":
        words.append(f"{kernels} kernels")
    if sweep != "batch":
        words.append(f"batch {network.batch}")
    count = len(calibration.devices)
    words.append(facts.get("devices") or f"{count} measured devices")
    if sweep == "devices" and any(
        isinstance(value, (int, float)) and value > count for value in values
    ):
        words[-1] += " and more like the last"
    if sweep != "bandwidth" and "link" in facts:
        words.append(facts["link"])
    alone = convolutions_s(calibration, calibration.chief)
    if alone > 0:
        share = alone / (alone + calibration.rest_s)
        words.append(f"{share:.0%} in convolutions")
    if sweep == "kernels":
        words[-1] += f" at {kernels}"
    return ", ".join(words)
