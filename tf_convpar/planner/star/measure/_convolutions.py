"""Measures how long a device takes for the passes of a convolution."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar import algorithms
from tf_convpar.algorithms import FORWARD
from tf_convpar.algorithms import INPUT_GRADIENT
from tf_convpar.algorithms import KERNEL_GRADIENT
from tf_convpar.algorithms import Geometry
from tf_convpar.planner.measure._clock import Clock
from tf_convpar.planner.star._calibration import Times

# Seconds of a sample: longer passes are measured with fewer images. A sample
# may take longer if there are few: the second number is for all of a device.
_RUN_S = 0.16
_DEVICE_S = 18.0
# Seconds of a sample by which the quantum is found.
_QUANTUM_S = 0.05
# Multiplications a second, until a pass has been timed.
_FIRST_GUESS = 2e10
# The fixed cost of a convolution is to read and sort its kernels. It is no more
# than this part of a pass that takes as long as a sample.
_MOST_FIXED = 0.5
# Parts of a layer's kernels (1 / 8, ...) that are measured, beside all of them.
_PARTS = (8, 4, 2)
WIDTHS = 1 + len(_PARTS)


@dataclasses.dataclass(frozen=True)
class ConvolutionWork:
    """A layer's convolution, as its device computes it.

    Attributes:
        name: Name of the layer.
        geometry: Geometry of the convolution, with a known batch and image.
        algorithm: Algorithm of the layer; None for direct.
        bias: Whether the layer has a bias.
        input_gradient: Whether training needs the gradient of its input.
    """

    name: str
    geometry: Geometry
    algorithm: str | None
    bias: bool
    input_gradient: bool


class Convolutions:
    """Times convolutions on one device.

    ```python
    Convolutions("/device:CPU:0", Clock()).times(work, widths=(64, 128, 512))
    ```
    """

    def __init__(self, device: str, clock: Clock, runs: int = 1000) -> None:
        """Prepares to time convolutions.

        Args:
            device: Name of the device.
            clock: Clock that takes the times.
            runs: Number of passes that will be timed, each at one width.
        """
        self._device = device
        self._run_s = max(_RUN_S, _DEVICE_S / runs)
        self._clock = clock
        # Multiplications a second by pass, after the first one of a pass; and
        # fixed seconds of a kernel by layer and pass.
        self._rates: dict[str, float] = {}
        self._fixed_s: dict[tuple[str, str], float] = {}
        self._call_s = clock.time(_call(device), f"{device}: empty call")

    def times(self, work: ConvolutionWork, widths: Sequence[int]) -> Times:
        """Seconds of each pass, for some numbers of kernels."""
        passes: dict[str, list[float]] = {
            FORWARD: [],
            INPUT_GRADIENT: [],
            KERNEL_GRADIENT: [],
        }
        for width in widths:
            for which, seconds in passes.items():
                seconds.append(self._seconds(work, which, width))
        return Times(tuple(widths), *(tuple(passes[which]) for which in passes))

    def seconds(self, work: ConvolutionWork, which: str, width: int) -> float:
        """Seconds of one pass with `width` kernels and the whole batch."""
        return self._seconds(work, which, width)

    def _seconds(self, work: ConvolutionWork, which: str, width: int) -> float:
        if which == INPUT_GRADIENT and not work.input_gradient:
            return 0.0
        geometry = dataclasses.replace(work.geometry, filters=width)
        batch = work.geometry.batch or 1
        images = self._images(geometry, which)
        seconds = self._timed(work, geometry, which, images)
        self._rates[which] = (
            dataclasses.replace(geometry, batch=images).multiplications
            / seconds
        )
        if images == batch:
            return seconds
        # Time is linear in the batch. Its fixed part is spent on the kernels.
        fewer = max(1, images // 2)
        if fewer == images:
            return seconds * batch / images
        if (work.name, which) not in self._fixed_s:
            less = self._timed(work, geometry, which, fewer)
            fixed = less - fewer * (seconds - less) / (images - fewer)
            self._fixed_s[work.name, which] = fixed / width
        fixed = self._fixed_s[work.name, which] * width
        fixed = min(max(fixed, 0.0), _MOST_FIXED * seconds)
        return fixed + (seconds - fixed) * batch / images

    def _images(self, geometry: Geometry, which: str) -> int:
        """Number of images that take about the time of a sample."""
        batch = geometry.batch or 1
        each = dataclasses.replace(geometry, batch=1).multiplications
        rate = self._rates.get(which) or max(
            self._rates.values(), default=_FIRST_GUESS
        )
        fit = int(self._run_s * rate / max(each, 1))
        # Vectors and blocks run over images too.
        if fit >= 8:
            fit = fit // 8 * 8
        return max(2, fit) if max(2, fit) * 1.5 < batch else batch

    def _timed(
        self, work: ConvolutionWork, geometry: Geometry, which: str, images: int
    ) -> float:
        geometry = dataclasses.replace(geometry, batch=images)
        choice = algorithms.by_name("direct", geometry)
        if work.algorithm == "auto":
            choice = algorithms.by_measurement(geometry, self._device)
        elif work.algorithm is not None:
            choice = algorithms.by_name(work.algorithm, geometry)
        (run,) = algorithms.runners(
            [getattr(choice, which)], geometry, which, self._device
        )
        name = (
            f"{self._device}: {work.name}, {which.replace('_', ' ')}, "
            f"{geometry.filters} kernels, {images} images"
        )
        calls = [run]
        if which == KERNEL_GRADIENT and work.bias:
            calls.append(_bias_gradient(geometry, self._device))
        seconds = self._clock.time(lambda: [call() for call in calls], name)
        return max(seconds - len(calls) * self._call_s, 1e-7)


def widths_of(filters: int, quantum: int) -> tuple[int, ...]:
    """An eighth, a quarter, half and all of the kernels, in whole quanta."""
    parts = {
        min(filters, max(1, round(filters / part / quantum)) * quantum)
        for part in _PARTS
    }
    return tuple(sorted(parts | {filters}))


def quantum_of(work: ConvolutionWork, convolutions: Convolutions) -> int:
    """Kernels that are computed in the time of one: 16, 8 or 1.

    Direct convolutions fill vectors of kernels. If eight kernels less than a
    multiple of 16 save next to nothing of what 16 less save, time has steps
    of 16. Few images are measured: the difference is small, and of short runs
    the median of several is taken.
    """
    top = min(work.geometry.filters, 256) // 16 * 16
    if top < 32:
        return 1
    each = dataclasses.replace(work.geometry, batch=1, filters=top)
    fit = int(_QUANTUM_S * _FIRST_GUESS / max(each.multiplications, 1))
    images = max(1, min(fit, work.geometry.batch or 1))
    work = dataclasses.replace(
        work, geometry=dataclasses.replace(work.geometry, batch=images)
    )

    def seconds(width: int) -> float:
        return convolutions.seconds(work, FORWARD, width)

    all_, lowest = seconds(top), seconds(top - 16)
    if all_ <= lowest:
        return 16
    if (all_ - seconds(top - 8)) / (all_ - lowest) < 0.25:
        return 16
    if (all_ - seconds(top - 4)) / (all_ - lowest) < 0.125:
        return 8
    return 1


def _call(device: str) -> Callable[[], Any]:
    """A call of a function that does nothing: the round trip to a device."""

    def nothing(x: tf.Tensor) -> tf.Tensor:
        with tf.device(device):
            return x + 1.0

    with tf.device(device):
        x = tf.constant(0.0)
    concrete = tf.function(nothing, autograph=False).get_concrete_function(x)
    return lambda: concrete(x).numpy()


def _bias_gradient(geometry: Geometry, device: str) -> Callable[[], Any]:
    shape = (geometry.batch, math.prod(n or 1 for n in geometry.output))

    def compute(dy: tf.Tensor) -> tf.Tensor:
        with tf.device(device):
            return tf.raw_ops.BiasAddGrad(out_backprop=dy)[0]

    with tf.device(device):
        dy = tf.ones((*shape, geometry.filters), geometry.dtype)
    concrete = tf.function(compute, autograph=False).get_concrete_function(dy)
    return lambda: concrete(dy).numpy()
