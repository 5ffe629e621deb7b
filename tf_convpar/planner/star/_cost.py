"""Predicts a step, for a given number of kernels on each device.

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

`_optimum.allocate` minimises this function.
"""

from __future__ import annotations

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
    rounded = -(-filters // quantum) * quantum
    if phase == FORWARD:
        return times.at("forward", rounded)
    seconds = times.at("kernel_gradient", rounded)
    if convolution.input_gradient:
        seconds += times.at("input_gradient", rounded)
    return seconds + device.update_s * convolution.parameters(filters)


def chief_rates(calibration: StarCalibration) -> tuple[float, float]:
    """Bytes per second out of the chief's interface, and into it."""
    chief, links = calibration.chief.name, calibration.links
    out = (link.bytes_per_s for link in links if link.source == chief)
    into = (link.bytes_per_s for link in links if link.target == chief)
    return max(out, default=1.0), max(into, default=1.0)


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
        (c, counts_of(calibration, c, allocation)) for c in calibration.network
    ]
    clock = _Clock(calibration)
    for convolution, counts in layers:
        clock.phase(convolution, FORWARD, counts)
    clock.chief_only("rest", ("", ""), calibration.rest_s)
    for convolution, counts in reversed(layers):
        clock.phase(convolution, BACKWARD, counts)
    return Prediction(clock.now, tuple(clock.spans), clock.sent)


def counts_of(
    calibration: StarCalibration,
    convolution: StarConvolution,
    allocation: Allocation,
) -> tuple[int, ...]:
    """The kernels of each device in one layer of an allocation.

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

    def chief_only(
        self, what: str, about: tuple[str, str], seconds: float
    ) -> None:
        """Lets the chief work while all others wait."""
        chief = self.calibration.chief.name
        self.now = self._note(chief, what, about, self.now, seconds)

    def phase(
        self, convolution: StarConvolution, phase: str, counts: Sequence[int]
    ) -> None:
        """Goes through a phase of a layer, up to the end of its join."""
        calibration, batch = self.calibration, self.calibration.network.batch
        chief = calibration.chief.name
        about = (convolution.name, phase)
        gradient = phase == BACKWARD
        # Nobody needs the gradient of the first layer's input.
        inputs = convolution.input_values(batch)
        inputs *= convolution.input_gradient or not gradient
        wire = calibration.network.wire_bytes
        input_bytes = [
            wire * inputs if n and d else 0 for d, n in enumerate(counts)
        ]
        map_bytes = [
            wire * convolution.output_values(batch, n) if d else 0
            for d, n in enumerate(counts)
        ]
        there, back = (
            (map_bytes, input_bytes) if gradient else (input_bytes, map_bytes)
        )
        shared_there = sum(there) / self.out_rate
        shared_back = sum(back) / self.in_rate
        ends = [self.now]
        for d, (device, n) in enumerate(
            zip(calibration.devices, counts, strict=True)
        ):
            time = self.now
            seconds = compute_s(calibration, device, convolution, phase, n)
            if d == 0:
                moved = sum(there) + sum(back)
                seconds += calibration.transfer_s * moved
            elif n:
                time = self._send(
                    chief, device.name, there[d], shared_there, about, time
                )
            time = self._note(device.name, "compute", about, time, seconds)
            if back[d]:
                time = self._send(
                    device.name, chief, back[d], shared_back, about, time
                )
            ends.append(time)
        self.now = max(ends)
        if any(counts[1:]):
            # Feature maps are joined or cut, the input's gradients added up.
            values = convolution.output_values(batch)
            values += gradient * (sum(n > 0 for n in counts) - 1) * inputs
            seconds = calibration.join_s * 4 * values
            self.chief_only("join", about, seconds)

    def _send(
        self,
        source: str,
        target: str,
        size: int,
        shared: float,
        about: tuple[str, str],
        start: float,
    ) -> float:
        """Sends `size` bytes, and returns when they have arrived.

        `shared` is the time of all bytes of the phase at the chief's rate.
        """
        link = self.calibration.link(source, target)
        seconds = link.latency_s + max(size / link.bytes_per_s, shared)
        name = f"{source} -> {target}"
        self.sent[name] = self.sent.get(name, 0) + size
        return self._note(name, "send", about, start, seconds)

    def _note(
        self,
        where: str,
        what: str,
        about: tuple[str, str],
        start: float,
        seconds: float,
    ) -> float:
        """Notes that a device or link is busy, and returns until when."""
        end = start + seconds
        if seconds > 0:
            self.spans.append(PredictedSpan(where, what, *about, start, end))
        return end
