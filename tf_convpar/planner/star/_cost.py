"""How long a step takes, for a given number of kernels on each device.

The star of paper 1 (Marques et al., 2018), as the layers run it. For each
convolution the step makes two phases, one after the other:

- forward: the chief sends the input to every device that has kernels, each
  convolves, the feature maps return and are joined;
- backward: the chief cuts the gradient of the feature maps and sends each
  device its part; each computes its two gradients and updates its kernels;
  the parts of the input's gradient return and are added up.

With `n_d` kernels on device `d` a phase lasts

    max over devices of (in_d + compute_d(n_d) + out_d)  +  join

where a transfer takes the latency and the longer of its own bytes at its
link's rate and *all* bytes of the phase at the chief's rate, which is that of
its fastest link: transfers share the chief's interface. The chief itself has
no transfers, but its processor works for those of others (`transfer_s` a
byte). `join` is the chief's time for joining, cutting and adding, and 0 where
it has all kernels. A step is `rest_s` and the sum of its phases. Devices do
not go on to the next phase before the slowest: the network needs its feature
maps.

`tf_convpar.planner.star.allocation.allocate` minimises this very function.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence

from tf_convpar.planner.star._calibration import Calibration
from tf_convpar.planner.star._calibration import Device
from tf_convpar.planner.star._network import Convolution
from tf_convpar.plans._prediction import BACKWARD
from tf_convpar.plans._prediction import FORWARD
from tf_convpar.plans._prediction import Prediction
from tf_convpar.plans._prediction import Span

PHASES = (FORWARD, BACKWARD)

# Kernels per device, in the calibration's order, for each layer.
Allocation = Mapping[str, Sequence[int]]


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes of one phase to and from each device; 0 for the chief."""

    to_device: tuple[int, ...]
    from_device: tuple[int, ...]


def compute_s(
    calibration: Calibration,
    device: Device,
    convolution: Convolution,
    phase: str,
    filters: int,
) -> float:
    """Seconds that a device computes in a phase, update included."""
    times = device.times[convolution.name]
    # Time grows in steps of the quantum.
    quantum = calibration.quantum
    whole = -(-filters // quantum) * quantum
    if phase == FORWARD:
        return times.at("forward", whole)
    seconds = times.at("kernel_gradient", whole)
    if convolution.input_gradient:
        seconds += times.at("input_gradient", whole)
    return seconds + device.update_s * convolution.parameters(filters)


def traffic(
    calibration: Calibration,
    convolution: Convolution,
    phase: str,
    counts: Sequence[int],
) -> Traffic:
    """What travels in a phase."""
    network = calibration.network
    width = network.wire_bytes
    of_input = width * convolution.input_values(network.batch)
    whole = [of_input if n and d else 0 for d, n in enumerate(counts)]
    parts = [
        width * convolution.output_values(network.batch, n) if d else 0
        for d, n in enumerate(counts)
    ]
    if phase == FORWARD:
        return Traffic(tuple(whole), tuple(parts))
    if not convolution.input_gradient:
        whole = [0] * len(counts)
    return Traffic(tuple(parts), tuple(whole))


def joined_bytes(
    calibration: Calibration,
    convolution: Convolution,
    phase: str,
    counts: Sequence[int],
) -> int:
    """What the chief joins, cuts or adds in a phase, at four bytes a number."""
    if not any(counts[1:]):
        return 0
    batch = calibration.network.batch
    values = convolution.output_values(batch)
    if phase == BACKWARD and convolution.input_gradient:
        terms = sum(n > 0 for n in counts)
        values += (terms - 1) * convolution.input_values(batch)
    return 4 * values


def chief_rates(calibration: Calibration) -> tuple[float, float]:
    """Bytes per second out of the chief's interface, and into it."""
    out = [
        link.bytes_per_s
        for link in calibration.links
        if link.source == calibration.chief.name
    ]
    into = [
        link.bytes_per_s
        for link in calibration.links
        if link.target == calibration.chief.name
    ]
    return max(out, default=1.0), max(into, default=1.0)


def memory_bytes(
    calibration: Calibration, convolution: Convolution, filters: int
) -> int:
    """What kernels and feature maps of a convolution take on a device.

    Parameters, their gradient and slots; the input and the feature maps, kept
    for the gradients, and a gradient of the latter.
    """
    if not filters:
        return 0
    network = calibration.network
    return 4 * (
        convolution.parameters(filters) * (2 + network.slots)
        + convolution.input_values(network.batch)
        + 2 * convolution.output_values(network.batch, filters)
    )


def predict(calibration: Calibration, allocation: Allocation) -> Prediction:
    """The step with these kernels on each device.

    ```python
    predict(calibration, {"conv2d": (300, 200), "conv2d_1": (900, 600)}).step_s
    ```

    Args:
        calibration: Of the devices.
        allocation: For every convolution, kernels per device that sum to its
            filters.

    Returns:
        The step. Its forward phases come first, then the rest of the network,
        then its backward phases in reverse order.

    Raises:
        ValueError: A layer is missing, or its kernels do not sum up.
    """
    layers = [
        (c, check(calibration, c, allocation)) for c in calibration.network
    ]
    clock = _Clock(calibration)
    for convolution, counts in layers:
        clock.phase(convolution, FORWARD, counts)
    clock.rest()
    for convolution, counts in reversed(layers):
        clock.phase(convolution, BACKWARD, counts)
    return Prediction(clock.now, tuple(clock.spans), clock.sent)


def check(
    calibration: Calibration, convolution: Convolution, allocation: Allocation
) -> tuple[int, ...]:
    """The counts of a layer, if they can be."""
    counts = tuple(allocation.get(convolution.name, ()))
    good = len(counts) == len(calibration.devices) and all(
        isinstance(n, int) and n >= 0 for n in counts
    )
    if not good or sum(counts) != convolution.filters:
        raise ValueError(
            f"Expected {len(calibration.devices)} numbers of kernels, one per "
            f"device, that sum to the {convolution.filters} filters of layer "
            f"'{convolution.name}'. Received: {counts}"
            + (f", which sum to {sum(counts)}." if good else ".")
        )
    return counts


class _Clock:
    """Goes through a step, and notes who is busy."""

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self.now = 0.0
        self.spans: list[Span] = []
        self.sent: dict[str, int] = {}
        self.out_rate, self.in_rate = chief_rates(calibration)

    def rest(self) -> None:
        chief = self.calibration.chief.name
        self._note(chief, "rest", "", "", self.now, self.calibration.rest_s)
        self.now += self.calibration.rest_s

    def phase(
        self, convolution: Convolution, phase: str, counts: Sequence[int]
    ) -> None:
        calibration = self.calibration
        chief = calibration.chief.name
        moved = traffic(calibration, convolution, phase, counts)
        about = (convolution.name, phase)
        shared_in = sum(moved.to_device) / self.out_rate
        shared_out = sum(moved.from_device) / self.in_rate
        ends = [self.now]
        for d, (device, n) in enumerate(
            zip(calibration.devices, counts, strict=True)
        ):
            time = self.now
            seconds = compute_s(calibration, device, convolution, phase, n)
            if d == 0:
                moving = sum(moved.to_device) + sum(moved.from_device)
                seconds += calibration.transfer_s * moving
            elif n:
                size = moved.to_device[d]
                time += self._send(
                    chief, device.name, size, shared_in, time, about
                )
            self._note(device.name, "compute", *about, time, seconds)
            time += seconds
            size = moved.from_device[d]
            if size:  # The first layer's input has no gradient.
                time += self._send(
                    device.name, chief, size, shared_out, time, about
                )
            ends.append(time)
        self.now = max(ends)
        joined = joined_bytes(calibration, convolution, phase, counts)
        seconds = calibration.join_s * joined
        self._note(chief, "join", *about, self.now, seconds)
        self.now += seconds

    def _send(
        self,
        source: str,
        target: str,
        size: int,
        shared: float,
        start: float,
        about: tuple[str, str],
    ) -> float:
        link = self.calibration.link(source, target)
        seconds = link.latency_s + max(size / link.bytes_per_s, shared)
        name = f"{source} -> {target}"
        self.sent[name] = self.sent.get(name, 0) + size
        self._note(name, "send", *about, start, seconds)
        return seconds

    def _note(
        self,
        where: str,
        what: str,
        layer: str,
        phase: str,
        start: float,
        seconds: float,
    ) -> None:
        if seconds > 0:
            self.spans.append(
                Span(where, what, layer, phase, start, start + seconds)
            )
