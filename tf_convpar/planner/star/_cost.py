"""How long a step takes, for a given number of kernels on each device.

The step is the star of paper 1 (Marques et al., 2018), as the layers run it. It
has two phases for each convolution, one after the other:

- forward: the chief sends the input to every device that has kernels. Each
  device convolves. The feature maps return and are joined;
- backward: the chief cuts the gradient of the feature maps and sends each
  device its part. Each device computes its two gradients and updates its
  kernels. The parts of the input's gradient return and are added up.

With `n_d` kernels on device `d` a phase lasts

    max over devices of (in_d + compute_d(n_d) + out_d)  +  join

where `in_d` and `out_d` are the transfers to and from the device. A transfer
takes the latency of its link, and then the longer of two times: its own bytes
at the link's rate, or *all* bytes of the phase at the chief's rate, since
transfers share the chief's interface. The chief's rate is that of its fastest
link. The chief itself has no transfers, but its processor works for those of
others (`transfer_s` a byte). `join` is the chief's time for joining, cutting
and adding. It is 0 where the chief has all kernels. A step is `rest_s` and the
sum of its phases. No device goes on to the next phase before the slowest one is
done: the network needs all feature maps.

`_optimum.allocate` minimises this very function.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence

from tf_convpar.planner.star._calibration import StarCalibration
from tf_convpar.planner.star._calibration import StarDevice
from tf_convpar.planner.star._network import StarConvolution
from tf_convpar.plans import BACKWARD
from tf_convpar.plans import FORWARD
from tf_convpar.plans import PredictedSpan
from tf_convpar.plans import Prediction

PHASES = (FORWARD, BACKWARD)

# Kernels per device, in the calibration's order, for each layer.
Allocation = Mapping[str, Sequence[int]]


@dataclasses.dataclass(frozen=True)
class StarTraffic:
    """Bytes of one phase to and from each device; 0 for the chief.

    Attributes:
        to_device: Bytes from the chief to each device.
        from_device: Bytes from each device to the chief.
    """

    to_device: tuple[int, ...]
    from_device: tuple[int, ...]


def compute_s(
    calibration: StarCalibration,
    device: StarDevice,
    convolution: StarConvolution,
    phase: str,
    filters: int,
) -> float:
    """Seconds that a device with `filters` kernels computes in a phase.

    The backward phase includes the update of the kernels.
    """
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
    calibration: StarCalibration,
    convolution: StarConvolution,
    phase: str,
    counts: Sequence[int],
) -> StarTraffic:
    """The bytes that travel in a phase, for these kernels per device."""
    network = calibration.network
    width = network.wire_bytes
    of_input = width * convolution.input_values(network.batch)
    whole = [of_input if n and d else 0 for d, n in enumerate(counts)]
    parts = [
        width * convolution.output_values(network.batch, n) if d else 0
        for d, n in enumerate(counts)
    ]
    if phase == FORWARD:
        return StarTraffic(tuple(whole), tuple(parts))
    if not convolution.input_gradient:
        whole = [0] * len(counts)
    return StarTraffic(tuple(parts), tuple(whole))


def joined_bytes(
    calibration: StarCalibration,
    convolution: StarConvolution,
    phase: str,
    counts: Sequence[int],
) -> int:
    """Bytes that the chief joins, cuts or adds in a phase: four a number."""
    if not any(counts[1:]):
        return 0
    batch = calibration.network.batch
    values = convolution.output_values(batch)
    if phase == BACKWARD and convolution.input_gradient:
        terms = sum(n > 0 for n in counts)
        values += (terms - 1) * convolution.input_values(batch)
    return 4 * values


def chief_rates(calibration: StarCalibration) -> tuple[float, float]:
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
    calibration: StarCalibration, convolution: StarConvolution, filters: int
) -> int:
    """Bytes that a convolution with `filters` kernels takes on a device.

    These are the parameters, their gradient and slots; the input and the
    feature maps, which are kept for the gradients; and the gradient of the
    feature maps.
    """
    if not filters:
        return 0
    network = calibration.network
    return 4 * (
        convolution.parameters(filters) * (2 + network.slots)
        + convolution.input_values(network.batch)
        + 2 * convolution.output_values(network.batch, filters)
    )


def predict(calibration: StarCalibration, allocation: Allocation) -> Prediction:
    """Predicts the step with these kernels on each device.

    ```python
    predict(calibration, {"conv2d": (300, 200), "conv2d_1": (900, 600)}).step_s
    ```

    Args:
        calibration: Measurements of the devices.
        allocation: For every convolution, by its layer's name, kernels per
            device that sum to its filters.

    Returns:
        The prediction. Its forward phases come first, then the rest of the
        network, then its backward phases in reverse order.

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
    calibration: StarCalibration,
    convolution: StarConvolution,
    allocation: Allocation,
) -> tuple[int, ...]:
    """The kernels per device of a layer.

    Raises:
        ValueError: They are missing, or do not sum to the layer's filters.
    """
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
    """Goes through a step, and notes when devices and links are busy."""

    def __init__(self, calibration: StarCalibration) -> None:
        self.calibration = calibration
        self.now = 0.0
        self.spans: list[PredictedSpan] = []
        self.sent: dict[str, int] = {}
        self.out_rate, self.in_rate = chief_rates(calibration)

    def rest(self) -> None:
        chief = self.calibration.chief.name
        self._note(chief, "rest", "", "", self.now, self.calibration.rest_s)
        self.now += self.calibration.rest_s

    def phase(
        self, convolution: StarConvolution, phase: str, counts: Sequence[int]
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
                PredictedSpan(where, what, layer, phase, start, start + seconds)
            )
