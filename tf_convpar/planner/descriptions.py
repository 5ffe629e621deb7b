"""Devices and links in words: `4xcpu:100GFLOPS,2xgpu:2TFLOPS`, `1Gbit`."""

from __future__ import annotations

import dataclasses
import re

from tf_convpar import units
from tf_convpar.planner.presets import EFFICIENCY
from tf_convpar.planner.presets import PRESETS

EXAMPLE = "4xcpu:100GFLOPS,1xgpu:10TFLOPS"
LINK = "1Gbit"
LATENCY = "0.1ms"

# How the `facts` of a calibration tell that nothing was measured.
SOURCE = "source"
DESCRIPTION = "description"

_ITEM = re.compile(
    r"(?:(?P<count>\d+)\s*x\s*)?"
    r"(?P<name>[A-Za-z][A-Za-z0-9_.-]*)"
    r"(?:\s*:\s*(?P<rate>[^@]+?))?"
    r"(?:\s*@\s*(?P<watts>.+?))?"
)


@dataclasses.dataclass(frozen=True)
class Described:
    """A device that is described rather than measured.

    Attributes:
        name: Kind of the device, and its number among devices of that kind,
            such as `"cpu:0"`.
        flops: Operations per second that it achieves on convolutions; a
            multiplication and an addition are two operations.
        watts: Power in watts while it computes; None if unknown.
    """

    name: str
    flops: float
    watts: float | None


def devices(text: str) -> list[Described]:
    """Reads the devices of a description.

    ```python
    devices("2xcpu:100GFLOPS,a100")[1].name  # "cpu:1"
    ```

    Args:
        text: Devices, separated by commas, each `[N x]NAME[:RATE][@WATTS]`,
            the chief first. RATE is what a device achieves on convolutions, in
            GFLOPS or TFLOPS. Without RATE, NAME is one of `presets.PRESETS`:
            the rate is its published peak times its efficiency. Without WATTS
            the power is that of the preset, if NAME is one.

    Raises:
        ValueError: A device cannot be read, or has neither a rate nor a
            preset.
    """
    described: list[Described] = []
    seen: dict[str, int] = {}
    for item in text.split(","):
        count, name, rate, power = _read(item.strip())
        for _ in range(count):
            number = seen.get(name, 0)
            seen[name] = number + 1
            described.append(Described(f"{name}:{number}", rate, power))
    return described


def link(rate: str, latency: str) -> tuple[float, float]:
    """Reads the rate and latency of links: bytes per second, and seconds.

    ```python
    link("1Gbit", "0.1ms")  # (125e6, 1e-4)
    ```

    Raises:
        ValueError: One of them cannot be read, or the rate is 0.
    """
    bytes_per_s, delay = units.bytes_per_s(rate), units.seconds(latency)
    if bytes_per_s <= 0:
        raise ValueError(
            f"Expected links that carry something. Received: {rate!r}."
        )
    return bytes_per_s, delay


def _read(item: str) -> tuple[int, str, float, float | None]:
    """Reads one item: the number of devices, their name, rate and power."""
    match = _ITEM.fullmatch(item)
    if match is None:
        raise ValueError(
            "Expected devices as [N x]NAME[:RATE][@WATTS], separated by "
            f"commas, such as {EXAMPLE} or 2xgpu:5TFLOPS@180W. Received: "
            f"{item!r}."
        )
    count = int(match["count"] or 1)
    if not count:
        raise ValueError(f"Expected at least one device. Received: {item!r}.")
    name = match["name"]
    preset = PRESETS.get(name.lower())
    if match["rate"]:
        rate = units.flops(match["rate"])
    elif preset:
        rate = preset.peak_flops * EFFICIENCY[preset.kind]
    else:
        raise ValueError(
            f"Expected a rate, as in {name}:100GFLOPS, or one of "
            f"{', '.join(PRESETS)}. Received: {item!r}."
        )
    power = preset.watts if preset else None
    if match["watts"]:
        power = units.watts(match["watts"])
    return count, name, rate, power
