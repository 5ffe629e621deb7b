"""Plans as JSON files, which people may edit.

`docs/planning.md` has the schema.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from tf_convpar.planner import _checked_json
from tf_convpar.planner._calibration import Calibration
from tf_convpar.planner._checked_json import Node
from tf_convpar.planner._cost import Prediction
from tf_convpar.planner._cost import Span
from tf_convpar.planner.plans._plan_make import plan_of
from tf_convpar.planner.plans._plan_type import Plan
from tf_convpar.planner.plans._plan_type import fingerprint
from tf_convpar.planner.plans._plan_type import over_memory

KIND = "plan"
# Of the file's form.
FORMAT = 1


def save(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Writes a plan to a JSON file, whole or not at all.

    ```python
    save(plan, "plan.json")
    load("plan.json") == plan  # True
    ```
    """
    _checked_json.write(to_json(plan), path)


def load(
    path: str | os.PathLike[str], calibration: Calibration | None = None
) -> Plan:
    """Reads a plan from a JSON file, whose counts may have been edited.

    ```python
    load("plan.json")  # with the prediction that was saved, if it still holds
    load("plan.json", calibration)  # with that calibration's prediction
    ```

    Args:
        path: A file that `save` wrote. In each layer, `kernels` may have been
            changed by hand.
        calibration: Of the same network and devices; None if there is none.

    Returns:
        The plan. Without a calibration, counts that were changed have no
        prediction.

    Raises:
        ValueError: Counts do not sum to a layer's filters, or do not fit a
            device's memory; the calibration is of another network or other
            devices; the file is no plan. The message says which.
        OSError: The file cannot be read.
    """
    node = _checked_json.read(path)
    found = _plan(node)
    if calibration is None:
        return found
    expected = fingerprint(calibration.network)
    if expected != found.fingerprint:
        node.children()["fingerprint"].fail(
            f"{expected!r}, as of the calibration's network, whose layers are "
            f"{', '.join(c.name for c in calibration.network)},"
        )
    names = tuple(device.name for device in calibration.devices)
    if names != found.devices:
        node.children()["devices"].fail(
            f"the calibration's devices, {', '.join(names)},",
            ", ".join(found.devices),
        )
    predicted = plan_of(calibration, found.allocation)
    # Of edited counts it has none.
    if predicted.prediction == found.prediction:
        return dataclasses.replace(predicted, reason=found.reason)
    return predicted


def to_json(plan: Plan) -> dict[str, Any]:
    """The plan as plain data for `json`."""
    prediction = None
    if plan.prediction is not None:
        prediction = {
            "of": _digest(plan.allocation),
            "step_s": float(plan.prediction.step_s),
            "sent_bytes": {
                link: int(count)
                for link, count in plan.prediction.sent_bytes.items()
            },
            "spans": [
                dataclasses.asdict(span) for span in plan.prediction.spans
            ],
        }
    return {
        "kind": KIND,
        "format": FORMAT,
        "fingerprint": plan.fingerprint,
        "reason": plan.reason,
        "devices": [
            {
                "name": name,
                "memory_bytes": memory,
                "single_s": plan.single_s.get(name),
            }
            for name, memory in zip(
                plan.devices, plan.memory_bytes, strict=True
            )
        ],
        "layers": [
            {
                "name": name,
                "filters": sum(counts),
                "kernels": list(counts),
                "bytes": plan.layer_bytes[name][0],
                "bytes_per_kernel": plan.layer_bytes[name][1],
            }
            for name, counts in plan.allocation.items()
        ],
        "equal_s": plan.equal_s,
        "prediction": prediction,
    }


def _digest(allocation: Mapping[str, tuple[int, ...]]) -> str:
    """Tells whether counts are those that a prediction is of."""
    text = json.dumps([[k, list(v)] for k, v in allocation.items()])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plan(node: Node) -> Plan:
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
    allocation, needs = _layers(layers, len(names))
    problem = over_memory(allocation, names, memory, needs)
    if problem:
        layers.fail("kernels that fit the memory of devices", problem)
    of, found = _prediction(prediction) if prediction.or_none() else ("", None)
    same = of == _digest(allocation)
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
    )


def _layers(
    node: Node, devices: int
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, int]]]:
    allocation: dict[str, tuple[int, ...]] = {}
    needs: dict[str, tuple[int, int]] = {}
    rows = [
        item.fields("name", "filters", "kernels", "bytes", "bytes_per_kernel")
        for item in node.items(1)
    ]
    _checked_json.distinct([row[0] for row in rows], "names of layers")
    for name, filters, kernels, fixed, each in rows:
        counts = kernels.integers()
        if len(counts) != devices or sum(counts) != filters.integer(1):
            kernels.fail(
                f"{devices} numbers of kernels, one per device, that sum to "
                f"the {filters.integer(1)} filters,",
                f"{list(counts)}, which sum to {sum(counts)}",
            )
        allocation[name.name()] = counts
        needs[name.name()] = (fixed.integer(), each.integer())
    return allocation, needs


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
