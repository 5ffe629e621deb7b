"""Reads plans from JSON files, which people may have edited.

`docs/plan-files.md` has the schema.
"""

from __future__ import annotations

import os

from tf_convpar.files import _checked_json
from tf_convpar.files._checked_json import Node
from tf_convpar.plans._prediction import Prediction
from tf_convpar.plans._prediction import Span
from tf_convpar.plans._type import FILTERS
from tf_convpar.plans._type import FORMAT
from tf_convpar.plans._type import KIND
from tf_convpar.plans._type import SAMPLES
from tf_convpar.plans._type import Plan
from tf_convpar.plans._type import digest
from tf_convpar.plans._type import over_memory


def load(path: str | os.PathLike[str]) -> Plan:
    """Reads a plan from a JSON file, whose counts may have been edited.

    ```python
    load("plan.json")  # with the prediction that was saved, if it still holds
    ```

    Args:
        path: A file that `Plan.save` wrote. In each layer, `shards` may have
            been changed by hand.

    Returns:
        The plan. Counts that were changed have no prediction.

    Raises:
        ValueError: Counts do not sum to a layer's filters, or do not fit a
            device's memory; the file is no plan. The message says which.
        OSError: The file cannot be read.
    """
    return of_file(_checked_json.read(path))


def of_file(node: Node) -> Plan:
    """The plan in a file that has been read, as `load`."""
    _checked_json.header(node, KIND, FORMAT, "Plan again")
    _, _, network, reason, devices, layers, equal_s, prediction = node.fields(
        "kind",
        "format",
        "fingerprint",
        "reason",
        "devices",
        "layers",
        "equal_s",
        "prediction",
    )
    rows = [
        item.fields("name", "memory_bytes", "single_s")
        for item in devices.items(1)
    ]
    _checked_json.distinct([name for name, _, _ in rows], "names of devices")
    singles = {
        name.name(): seconds.number()
        for name, _, seconds in rows
        if seconds.or_none()
    }
    names = tuple(name.name() for name, _, _ in rows)
    memory = tuple(
        limit.integer() if limit.or_none() else None for _, limit, _ in rows
    )
    allocation, needs, splits = _layers(layers, len(names))
    problem = over_memory(allocation, names, memory, needs)
    if problem:
        layers.fail("kernels that fit the memory of devices", problem)
    of, found = _prediction(prediction) if prediction.or_none() else ("", None)
    same = of == digest(allocation, splits)
    why = reason.text()
    if not same:
        why = "Changed by hand; only a calibration can say what it takes."
    return Plan(
        allocation=allocation,
        devices=names,
        prediction=found if same else None,
        single_s=singles,
        equal_s=equal_s.number() if equal_s.or_none() else None,
        reason=why,
        fingerprint=network.name(),
        memory_bytes=memory,
        layer_bytes=needs,
        splits=splits,
    )


def _layers(
    node: Node, devices: int
) -> tuple[
    dict[str, tuple[int, ...]], dict[str, tuple[int, int]], dict[str, str]
]:
    allocation: dict[str, tuple[int, ...]] = {}
    splits: dict[str, str] = {}
    needs: dict[str, tuple[int, int]] = {}
    rows = [
        item.fields(
            *("name", "split", "of", "shards", "bytes", "bytes_per_shard")
        )
        for item in node.items(1)
    ]
    _checked_json.distinct([row[0] for row in rows], "names of layers")
    for name, split, of, shards, fixed, each in rows:
        if split.text() not in (FILTERS, SAMPLES):
            split.fail(f"{FILTERS!r} or {SAMPLES!r}")
        counts = shards.integers()
        if len(counts) != devices or sum(counts) != of.integer(1):
            what = "kernels" if split.text() == FILTERS else "samples"
            shards.fail(
                f"{devices} numbers of {what}, one per device, that sum to "
                f"{of.integer(1)},",
                f"{list(counts)}, which sum to {sum(counts)}",
            )
        allocation[name.name()] = counts
        needs[name.name()] = (fixed.integer(), each.integer())
        splits[name.name()] = split.text()
    return allocation, needs, splits


def _prediction(node: Node) -> tuple[str, Prediction]:
    of, step, sent, spans = node.fields("of", "step_s", "sent_bytes", "spans")
    return of.text(), Prediction(
        step.number(),
        tuple(_span(item) for item in spans.items()),
        {link: child.integer() for link, child in sent.children().items()},
    )


def _span(node: Node) -> Span:
    where, what, layer, phase, start, end = node.fields(
        "where", "what", "layer", "phase", "start", "end"
    )
    if end.number() < start.number():
        end.fail("an end that is not before the start")
    return Span(
        where.name(),
        what.name(),
        layer.text(),
        phase.text(),
        start.number(),
        end.number(),
    )
