"""Calibrations as JSON files whose every field is checked when read."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from tf_convpar.files import _checked_json
from tf_convpar.files._checked_json import Node
from tf_convpar.planner._calibration import PASSES
from tf_convpar.planner._calibration import Calibration
from tf_convpar.planner._calibration import Device
from tf_convpar.planner._calibration import Work
from tf_convpar.planner._link import Link

KIND = "calibration"
# Of the file's form.
FORMAT = 4
_OF_WORK = tuple(field.name for field in dataclasses.fields(Work))


def save(calibration: Calibration, path: str | os.PathLike[str]) -> None:
    """Writes a calibration to a JSON file, whole or not at all.

    ```python
    save(calibration, "cluster.json")
    load("cluster.json") == calibration  # True
    ```

    Raises:
        ValueError: It is one that `load` would refuse; nothing is written.
        OSError: The file cannot be written.
    """
    _checked_json.write(to_json(calibration), path)


def to_json(calibration: Calibration) -> dict[str, Any]:
    """The calibration as plain data for `json`.

    Raises:
        ValueError: It is one that `load` would refuse.
    """
    content = {
        "kind": KIND,
        "format": FORMAT,
        "model": calibration.model,
        "batch": int(calibration.batch),
        "devices": [_of_device(device) for device in calibration.devices],
        "links": [dataclasses.asdict(link) for link in calibration.links],
        "slots": int(calibration.slots),
        "facts": dict(calibration.facts),
    }
    _calibration(Node(content, "", "the calibration"))
    return content


def load(path: str | os.PathLike[str]) -> Calibration:
    """Reads a calibration from a JSON file.

    Args:
        path: A file that `save` wrote.

    Raises:
        ValueError: The file is truncated, old, edited to something
            impossible, or no calibration. The message names the file, the place
            in it, what was expected and what is there.
        OSError: The file cannot be read.
    """
    return _calibration(_checked_json.read(path))


def _of_device(device: Device) -> dict[str, Any]:
    return {
        "name": device.name,
        "update_s": float(device.update_s),
        "byte_s": float(device.byte_s),
        "message_s": float(device.message_s),
        "memory_bytes": device.memory_bytes,
        "works": {
            key: {name: list(getattr(work, name)) for name in _OF_WORK}
            for key, work in device.works.items()
        },
    }


def _calibration(node: Node) -> Calibration:
    _checked_json.header(node, KIND, FORMAT, "Measure again")
    _, _, model, batch, devices, links, slots, facts = node.fields(
        *("kind", "format", "model", "batch"),
        *("devices", "links", "slots", "facts"),
    )
    found = tuple(_device(item) for item in devices.items(1))
    keys = set(found[0].works)
    for device, item in zip(found, devices.items(), strict=True):
        if set(device.works) != keys:
            item.fail("the same layers for every device")
    made = Calibration(
        model.name(),
        batch.integer(1),
        found,
        tuple(_link(item) for item in links.items()),
        slots.integer(),
        {name: child.text() for name, child in facts.children().items()},
    )
    known = {(link.source, link.target) for link in made.links}
    for a in found:
        for b in found:
            if a.name != b.name and (a.name, b.name) not in known:
                links.fail(f"a link from {a.name} to {b.name}")
    return made


def _device(node: Node) -> Device:
    name, update, byte, message, memory, works = node.fields(
        "name", "update_s", "byte_s", "message_s", "memory_bytes", "works"
    )
    return Device(
        name.name(),
        {key: _work(child) for key, child in works.children().items()},
        update.number(),
        byte.number(),
        message.number(),
        memory.integer() if memory.or_none() else None,
    )


def _work(node: Node) -> Work:
    fields = dict(zip(_OF_WORK, node.fields(*_OF_WORK), strict=True))
    samples = fields["samples"].integers(1)
    found = Work(
        samples,
        *(fields[name].numbers() for name in _OF_WORK if name != "samples"),
    )
    if len(found.on_shards) != len(PASSES):
        fields["on_shards"].fail("a number forward, and one backward")
    for first, others in (
        ("samples", ("forward", "backward")),
        ("filters", ("forward_of", "backward_of")),
    ):
        points = getattr(found, first)
        if not points or list(points) != sorted(set(points)):
            fields[first].fail("ascending numbers")
        for name in others:
            if len(getattr(found, name)) != len(points):
                fields[name].fail(f"as many numbers as {first}")
    return found


def _link(node: Node) -> Link:
    source, target, rate, latency = node.fields(
        "source", "target", "bytes_per_s", "latency_s"
    )
    return Link(
        source.name(), target.name(), rate.number(above=0), latency.number()
    )
