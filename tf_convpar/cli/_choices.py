"""The algorithms of a model's convolutions, as data and as tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING
from typing import Any

from tf_convpar.units import MIB

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


@dataclasses.dataclass(frozen=True)
class Choices:
    """Which algorithm is fastest for each convolution of a model.

    Attributes:
        model: Name of the model, or its file.
        batch: Images in a batch.
        threads: Threads of one operation; None for one for each core.
        passes: The passes that were chosen for.
        convolutions: Each distinct convolution, its layers and the records of
            its passes, as plain data.
        step: Times of a whole training step in ms, plain and with what was
            chosen, if these were measured.
    """

    model: str
    batch: int
    threads: int | None
    passes: tuple[str, ...]
    convolutions: list[dict[str, Any]]
    step: dict[str, float] | None

    @property
    def totals(self) -> dict[str, Any]:
        """Sums of the measured times over all layers, by pass and in all."""
        totals = {}
        for which in self.passes:
            direct = chosen = 0.0
            for convolution in self.convolutions:
                record = convolution["passes"][which]
                times = {c["name"]: c["time_ms"] for c in record["candidates"]}
                chosen_ms = times.get(record["chosen"])
                if times.get("direct") is not None and chosen_ms is not None:
                    count = len(convolution["layers"])
                    direct += count * times["direct"]
                    chosen += count * chosen_ms
            totals[which] = {"direct_ms": direct, "chosen_ms": chosen}
        totals["all"] = {
            name: sum(total[name] for total in totals.values())
            for name in ("direct_ms", "chosen_ms")
        }
        for total in totals.values():
            total["gain"] = (
                total["direct_ms"] / total["chosen_ms"]
                if total["chosen_ms"]
                else 1.0
            )
        return totals

    def to_dict(self) -> dict[str, Any]:
        """The choices as plain data, for JSON."""
        return {
            "model": self.model,
            "batch": self.batch,
            "threads": self.threads,
            "convolutions": self.convolutions,
            "totals": self.totals,
            "step": self.step,
        }

    def tables(self) -> Iterator[RenderableType]:
        """A table for each convolution, all of one form, for 80 columns."""
        from rich.markup import escape

        yield f"[bold]{escape(self.model)}, batch {self.batch}[/bold]"
        heads = _table()
        heads.add_row("", "Time", "Of", "Workspace", "", "")
        heads.add_row("Algorithm", "(ms)", "direct", "(MiB)", "Error", "")
        yield heads
        for convolution in self.convolutions:
            text = escape(convolution["convolution"])
            if len(convolution["layers"]) > 1:
                text += f" ({len(convolution['layers'])} layers)"
            yield f"\n[bold]{text}[/bold]"
            yield _passes_table(convolution["passes"])
        yield ""
        yield from self._gains()

    def _gains(self) -> Iterator[str]:
        for which, total in self.totals.items():
            if total["direct_ms"]:
                yield (
                    f"{_words(which)}: direct {total['direct_ms']:.1f} ms, "
                    f"chosen {total['chosen_ms']:.1f} ms, "
                    f"{total['gain']:.2f} times as fast, where measured"
                )
        if self.step:
            yield (
                "A training step on this machine alone: "
                f"{self.step['keras_ms']:.0f} ms in Keras, "
                f"{self.step['auto_ms']:.0f} ms by "
                'parallelize(model, algorithm="auto"): '
                f"[bold]{self.step['gain']:.2f} times as fast[/bold]."
            )


def _table() -> Table:
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(width=18, no_wrap=True)
    for width in (8, 7, 9, 6):
        table.add_column(width=width, justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _passes_table(passes: dict[str, dict[str, Any]]) -> RenderableType:
    rules = {record["rule"] for record in passes.values()}
    if len(rules) == 1 and None not in rules:
        return f"direct: {rules.pop()}"
    rows = _table()
    for which, record in passes.items():
        rule = f"direct: {record['rule']}" if record["rule"] else ""
        rows.add_row(_words(which), *[""] * 4, rule)
        for candidate in record["candidates"]:
            chosen = candidate["name"] == record["chosen"]
            rows.add_row(
                f"  {candidate['name']}",
                *_numbers(candidate),
                "chosen" if chosen else _why(candidate),
                style="bold" if chosen else None,
            )
    return rows


def _words(which: str) -> str:
    return which.replace("_", " ")


def _why(candidate: dict[str, Any]) -> str:
    """Why a candidate was dropped, without the details that JSON has."""
    return str(candidate["dropped"] or "").partition(":")[0]


def _numbers(candidate: dict[str, Any]) -> list[str]:
    formats = (
        ("time_ms", "{:.2f}", 1.0),
        ("ratio", "{:.2f}", 1.0),
        ("workspace_bytes", "{:.1f}", MIB),
        ("error", "{:.0e}", 1.0),
    )
    return [
        "" if candidate[name] is None else form.format(candidate[name] / unit)
        for name, form, unit in formats
    ]
