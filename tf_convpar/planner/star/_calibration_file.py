"""Calibrations as JSON files.

`docs/planning-the-star.md` has the schema. Every field is required, and
nothing else is accepted: what is misread here would become a wrong plan.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from tf_convpar.files import _checked_json
from tf_convpar.files._checked_json import Node
from tf_convpar.planner._link import Link
from tf_convpar.planner.star._calibration import Calibration
from tf_convpar.planner.star._calibration import Device
from tf_convpar.planner.star._calibration import Times
from tf_convpar.planner.star._network import Convolution
from tf_convpar.planner.star._network import Network

KIND = "star calibration"
# Of the file's form.
FORMAT = 1


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


def load(path: str | os.PathLike[str]) -> Calibration:
    """Reads a calibration from a JSON file.

    Args:
        path: A file that `save` wrote.

    Returns:
        The calibration, equal to the saved one.

    Raises:
        ValueError: The file is truncated, old, edited to something
            impossible, or no calibration. The message names the file, the
            place in it, what was expected and what is there.
        OSError: The file cannot be read.
    """
    return _calibration(_checked_json.read(path))


def to_json(calibration: Calibration) -> dict[str, Any]:
    """The calibration as plain data for `json`.

    Raises:
        ValueError: It is one that `from_json` would refuse.
    """
    network = calibration.network
    content = {
        "kind": KIND,
        "format": FORMAT,
        "network": {
            "batch": int(network.batch),
            "wire_bytes": int(network.wire_bytes),
            "slots": int(network.slots),
            "convolutions": [_of_convolution(c) for c in network],
        },
        "devices": [_of_device(device) for device in calibration.devices],
        "links": [
            {
                "source": link.source,
                "target": link.target,
                "bytes_per_s": float(link.bytes_per_s),
                "latency_s": float(link.latency_s),
            }
            for link in calibration.links
        ],
        "rest_s": float(calibration.rest_s),
        "join_s": float(calibration.join_s),
        "transfer_s": float(calibration.transfer_s),
        "quantum": int(calibration.quantum),
        "facts": dict(calibration.facts),
    }
    _calibration(Node(content, "", "the calibration"))
    return content


def from_json(content: dict[str, Any]) -> Calibration:
    """The calibration that `to_json` made this of.

    Raises:
        ValueError: As for `load`.
    """
    return _calibration(Node(content, "", "the calibration"))


def _of_convolution(convolution: Convolution) -> dict[str, Any]:
    content = dataclasses.asdict(convolution)
    for name in ("image", "output", "window"):
        content[name] = [int(n) for n in content[name]]
    for name in ("channels", "filters", "groups"):
        content[name] = int(content[name])
    return content


def _of_device(device: Device) -> dict[str, Any]:
    memory = device.memory_bytes
    return {
        "name": device.name,
        "times": {
            layer: {
                "filters": [int(n) for n in times.filters],
                "forward": [float(t) for t in times.forward],
                "input_gradient": [float(t) for t in times.input_gradient],
                "kernel_gradient": [float(t) for t in times.kernel_gradient],
            }
            for layer, times in device.times.items()
        },
        "update_s": float(device.update_s),
        "memory_bytes": None if memory is None else int(memory),
        "watts": None if device.watts is None else float(device.watts),
        "idle_watts": float(device.idle_watts),
    }


def _calibration(node: Node) -> Calibration:
    _checked_json.header(node, KIND, FORMAT, "Calibrate again")
    fields = node.fields(
        "kind",
        "format",
        "network",
        "devices",
        "links",
        "rest_s",
        "join_s",
        "transfer_s",
        "quantum",
        "facts",
    )
    network = _network(fields[2])
    devices = [_device(item, network) for item in fields[3].items(1)]
    _checked_json.distinct(
        [item.children()["name"] for item in fields[3].items()],
        "names of devices",
    )
    return Calibration(
        network=network,
        devices=tuple(devices),
        links=_links(fields[4], [device.name for device in devices]),
        rest_s=fields[5].number(),
        join_s=fields[6].number(),
        transfer_s=fields[7].number(),
        quantum=fields[8].integer(1),
        facts={
            name: child.text() for name, child in fields[9].children().items()
        },
    )


def _network(node: Node) -> Network:
    batch, wire, slots, rows = node.fields(
        "batch", "wire_bytes", "slots", "convolutions"
    )
    found = tuple(_convolution(item) for item in rows.items(1))
    _checked_json.distinct(
        [item.children()["name"] for item in rows.items()], "names of layers"
    )
    return Network(found, batch.integer(1), wire.integer(1), slots.integer())


def _convolution(node: Node) -> Convolution:
    names = [field.name for field in dataclasses.fields(Convolution)]
    fields = dict(zip(names, node.fields(*names), strict=True))
    shapes = {
        name: fields[name].integers(1) for name in ("image", "output", "window")
    }
    axes = len(shapes["image"])
    for name, shape in shapes.items():
        if len(shape) != axes or not axes:
            fields[name].fail(f"{axes or 'some'} numbers, one for each axis,")
    numbers = {
        name: fields[name].integer(1)
        for name in ("channels", "filters", "groups")
    }
    for name in ("channels", "filters"):
        if numbers[name] % numbers["groups"]:
            fields[name].fail(f"a multiple of groups, {numbers['groups']},")
    return Convolution(
        name=fields["name"].name(),
        image=shapes["image"],
        output=shapes["output"],
        channels=numbers["channels"],
        filters=numbers["filters"],
        window=shapes["window"],
        groups=numbers["groups"],
        bias=fields["bias"].boolean(),
        input_gradient=fields["input_gradient"].boolean(),
    )


def _device(node: Node, network: Network) -> Device:
    name, times, update, memory, watts, idle = node.fields(
        "name", "times", "update_s", "memory_bytes", "watts", "idle_watts"
    )
    layers = times.fields(*(convolution.name for convolution in network))
    limit, power = memory.or_none(), watts.or_none()
    return Device(
        name=name.name(),
        times={
            convolution.name: _times(layer)
            for convolution, layer in zip(network, layers, strict=True)
        },
        update_s=update.number(),
        memory_bytes=limit.integer() if limit else None,
        watts=power.number() if power else None,
        idle_watts=idle.number(),
    )


def _times(node: Node) -> Times:
    filters, *passes = node.fields(
        "filters", "forward", "input_gradient", "kernel_gradient"
    )
    widths = filters.integers(1)
    ascending = all(a < b for a, b in zip(widths, widths[1:], strict=False))
    if not widths or not ascending:
        filters.fail("numbers of kernels, each more than the one before,")
    seconds = [field.numbers() for field in passes]
    for field, values in zip(passes, seconds, strict=True):
        if len(values) != len(widths):
            field.fail(
                f"{len(widths)} numbers, one for each of `filters`,",
                f"{len(values)}",
            )
    return Times(widths, *seconds)


def _links(node: Node, names: list[str]) -> tuple[Link, ...]:
    links: list[Link] = []
    seen = set()
    for item in node.items():
        source, target, rate, latency = item.fields(
            "source", "target", "bytes_per_s", "latency_s"
        )
        for end in (source, target):
            if end.text() not in names:
                end.fail(f"one of the devices, {', '.join(names)},")
        ends = source.text(), target.text()
        if ends[0] == ends[1]:
            target.fail("another device than the link's source")
        if ends in seen:
            item.fail("each link once", f"{' -> '.join(ends)} a second time")
        seen.add(ends)
        links.append(Link(*ends, rate.number(0), latency.number()))
    chief, *others = names
    for other in others:
        for ends in ((chief, other), (other, chief)):
            if ends not in seen:
                node.fail(
                    f"a link {' -> '.join(ends)}, both directions between the "
                    "first device and each other,",
                    f"{len(links)} links without it",
                )
    return tuple(links)
