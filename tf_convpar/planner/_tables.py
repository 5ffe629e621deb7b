"""Tables of presets, links, layers and ways to train, for people."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

from tf_convpar.machines import short
from tf_convpar.planner import presets
from tf_convpar.units import seconds_text
from tf_convpar.units import three_digits

if TYPE_CHECKING:
    from rich.table import Table

    from tf_convpar.planner._calibration import Calibration
    from tf_convpar.planner._link import Link
    from tf_convpar.planner._ways_to_train import Way


def preset_table() -> Table:
    """The devices that are known by name, with rates and power."""
    from rich.table import Table

    table = Table()
    for head in ("Name", "Peak (GFLOPS)", "Taken (GFLOPS)", "Watts"):
        table.add_column(head, justify="left" if head == "Name" else "right")
    table.add_column("Device")
    for name, preset in presets.PRESETS.items():
        taken = preset.peak_flops * presets.EFFICIENCY[preset.kind]
        table.add_row(
            name,
            f"{preset.peak_flops / 1e9:.0f}",
            f"{taken / 1e9:.0f}",
            f"{preset.watts:g}",
            # The JSON has the whole source.
            preset.source.partition(",")[0],
        )
    return table


def link_table(links: Iterable[Link]) -> Table:
    """The rates and latencies of links."""
    from rich.table import Table

    table = Table("link", "rate", "latency")
    for link in links:
        table.add_row(
            f"{short(link.source)} -> {short(link.target)}",
            f"{link.bytes_per_s / 1e6:.0f} MB/s",
            f"{1e3 * link.latency_s:.2f} ms",
        )
    return table


def layer_table(model: Any, calibration: Calibration) -> Table:
    """Times of each kind of layer on each device, and of a step alone.

    Layers of a kind do the same work, which is measured once. The first of them
    has its name in the table.

    Args:
        model: Model that was measured.
        calibration: Measurements of that model.
    """
    from rich.markup import escape
    from rich.table import Table

    from tf_convpar.planner import work_keys
    from tf_convpar.planner.balancing import alone
    from tf_convpar.sharding import calls_of

    graph = calls_of(model)
    kinds: dict[str, list[Any]] = {}
    for call in graph.calls:
        if call.layer is not None:
            kinds.setdefault(work_keys.key(graph, call), []).append(call)
    table = Table()
    table.add_column("layer")
    table.add_column("of its kind", justify="right")
    for device in calibration.devices:
        table.add_column(escape(short(device.name)), justify="right")
    for key, calls in kinds.items():
        first = calls[0]
        works = [device.works[key] for device in calibration.devices]
        table.add_row(
            f"{escape(first.name)} ({type(first.layer).__name__})",
            str(len(calls)),
            *(
                " + ".join(
                    f"{1e3 * work.at(which, calibration.batch):.2f}"
                    for which in ("forward", "backward")
                )
                for work in works
            ),
        )
    seconds = alone(graph, calibration)
    table.add_section()
    table.add_row(
        "a step alone, with updates",
        "",
        *(
            f"{1e3 * seconds[device.name]:.1f}"
            for device in calibration.devices
        ),
    )
    return table


def way_table(ways: Sequence[Way]) -> Table:
    """A row for each way to train, in the order of `compare`."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title="Ways to train",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        show_edge=False,
    )
    table.add_column("Way and devices; + within a replica")
    for head in (
        "Samples\na step",
        "Step",
        "Samples\na second",
        "MB into\none",
    ):
        table.add_column(head, justify="right", vertical="bottom", no_wrap=True)
    table.add_column("Whose\nnumbers", vertical="bottom", no_wrap=True)
    for way in ways:
        table.add_row(
            escape(way.label),
            str(sum(way.batches)),
            seconds_text(way.step_s),
            three_digits(way.samples_per_s),
            f"{way.received_bytes / 1e6:.1f}",
            way.numbers,
        )
    return table
