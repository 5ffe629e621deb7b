"""Computes convolutions with strides or dilation by convolutions without.

With stride `s` the pixels of a phase, every s-th one, meet only every s-th
weight. So with `k_p[j] = k[js + p]` and `x_p[i] = x[is + p]` on each axis,

    y[i] = sum over p, j of k_p[j] x_p[i + j],

which are `s` convolutions without strides on each axis, by smaller windows.
With dilation `d` outputs of one phase meet pixels of that phase only:

    y_p[i] = sum over j of k[j] x_p[i + j],

one convolution of `d` times as many images. Winograd's algorithm saves what it
saves in those, for two copies of what is cut in phases: 9 multiplications of a
window of 3x3 become 5.1 with stride 2 and tiles of 4x4, and 2.25 with dilation.

Source: C. Yang et al., *DWM: A Decomposable Winograd Method for Convolution
Acceleration* (2020), section 3; dilation as in F. Yu and V. Koltun,
*Multi-Scale Context Aggregation by Dilated Convolutions* (2016), section 2.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar.algorithms._algorithm import Algorithm
from tf_convpar.algorithms._algorithm import Geometry
from tf_convpar.algorithms._tensors import sizes_of
from tf_convpar.algorithms._workspace import Processor
from tf_convpar.ops import NOTHING
from tf_convpar.ops import Epilogue


class Phases(Algorithm):
    """Cuts images, or feature maps too, into phases; another one computes.

    ```python
    Phases("winograd", functools.partial(named, "winograd"))
    ```

    Args:
        kind: Name of the algorithm for the phases.
        find: That algorithm for a convolution without strides and dilation;
            direct where it has no tile for it.
    """

    def __init__(
        self, kind: str, find: Callable[[Geometry], Algorithm]
    ) -> None:
        self.name = f"phases:{kind}"
        self._find = find

    def refuses(self, geometry: Geometry, which: str) -> str | None:
        """The reason why it does not compute this pass; None if it does."""
        if geometry.is_dense:
            return "There is one phase only."
        if None in geometry.image:
            return "Phases of images of unknown size may differ."
        if math.prod(geometry.window) == 1:
            return "A window of one pixel has one phase only."
        if max(geometry.strides) > 1 and max(geometry.dilation) > 1:
            return "Strides and dilation are not cut at once."
        return None

    def forward(
        self,
        x: tf.Tensor,
        kernel: tf.Tensor,
        geometry: Geometry,
        epilogue: Epilogue = NOTHING,
    ) -> tf.Tensor:
        """The feature maps; nothing is remembered."""
        cut = _PhaseCut(geometry)
        parts = cut.images(x)
        maps = [
            self._find(dense).forward(part, k, dense)
            for part, k, dense in zip(
                parts, cut.kernels(kernel), cut.geometries(), strict=True
            )
        ]
        return epilogue.applied(cut.joined_maps(maps))

    def input_gradient(
        self,
        dy: tf.Tensor,
        kernel: tf.Tensor,
        geometry: Geometry,
        input_shape: Any,
    ) -> tf.Tensor:
        """The gradient for `x`."""
        cut = _PhaseCut(geometry)
        maps = cut.maps(dy)
        images = sizes_of(maps)[0]
        return cut.joined_images(
            [
                self._find(dense).input_gradient(
                    maps, k, dense, [images, *dense.image, dense.channels]
                )
                for k, dense in zip(
                    cut.kernels(kernel), cut.geometries(), strict=True
                )
            ]
        )

    def kernel_gradient(
        self, x: tf.Tensor, dy: tf.Tensor, geometry: Geometry
    ) -> tf.Tensor:
        """The gradient for the kernel."""
        cut = _PhaseCut(geometry)
        maps = cut.maps(dy)
        return cut.joined_kernels(
            [
                self._find(dense).kernel_gradient(part, maps, dense)
                for part, dense in zip(
                    cut.images(x), cut.geometries(), strict=True
                )
            ]
        )

    def multiplications(self, geometry: Geometry, which: str) -> int:
        """Number of multiplications of all phases."""
        return sum(
            self._find(dense).multiplications(dense, which)
            for dense in _PhaseCut(geometry).geometries()
        )

    def workspace(
        self, geometry: Geometry, which: str, on: Processor | None = None
    ) -> int:
        """Bytes of the phases, and of the workspace of one of them."""
        phases = _PhaseCut(geometry).geometries()
        size = tf.as_dtype(geometry.dtype).size
        copies = sum(
            _values(dense.image, dense.batch) * dense.channels
            + _values(dense.output, dense.batch) * dense.filters
            for dense in phases
        )
        return int(copies * size) + max(
            self._find(dense).workspace(dense, which, on) for dense in phases
        )


def _values(sizes: Sequence[int | None], batch: int | None) -> int:
    return math.prod(n or 1 for n in (*sizes, batch))


class _PhaseCut:
    """How the tensors of a convolution are cut into phases, and joined.

    Phases are those of `SpaceToBatch`: the first of all images, the second of
    all images, and so on.
    """

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry
        self._strided = max(geometry.strides) > 1
        self._block = geometry.strides if self._strided else geometry.dilation
        # On each axis, of the longest phase: pixels, weights, feature maps.
        self._pixels: list[int] = []
        self._window: list[int] = []
        self._output: list[int] = []
        # Zeros before an axis, and after it. Pixels after the last window are
        # zeros fewer than none.
        self._pads: list[tuple[int, int]] = []
        for n, out, window, stride, dilation in zip(
            geometry.image,
            geometry.output,
            geometry.window,
            geometry.strides,
            geometry.dilation,
            strict=True,
        ):
            assert n is not None and out is not None
            reach = (window - 1) * dilation + 1
            missing = max((out - 1) * stride + reach - n, 0)
            before = missing // 2 if geometry.padding == "same" else 0
            maps = out if self._strided else _up(out, dilation)
            weights = _up(window, stride)
            pixels = maps + weights - 1
            unit = stride if self._strided else dilation
            self._pixels.append(pixels)
            self._window.append(weights)
            self._output.append(maps)
            self._pads.append((before, pixels * unit - before - n))

    def _windows(self) -> list[tuple[int, ...]]:
        """The window of each phase, of 0 on an axis where it has no weight."""
        if not self._strided:
            return [self._geometry.window]
        return [
            tuple(
                _up(window - p, stride)
                for window, p, stride in zip(
                    self._geometry.window, phase, self._block, strict=True
                )
            )
            for phase in _phases(self._block)
        ]

    def geometries(self) -> list[Geometry]:
        """The convolution of each phase that has weights."""
        g = self._geometry
        batch = g.batch
        if not self._strided and batch is not None:
            batch *= math.prod(self._block)
        return [
            dataclasses.replace(
                g,
                image=_sums(self._output, window),
                window=window,
                strides=(),
                dilation=(),
                padding="valid",
                batch=batch,
            )
            for window in self._windows()
            if min(window) > 0
        ]

    def images(self, x: tf.Tensor) -> list[tf.Tensor]:
        """The images of each phase that has weights."""
        for axis, (_, after) in enumerate(self._pads, 1):
            if after < 0:
                end = [slice(None)] * axis + [slice(0, after)]
                x = x[tuple(end)]
        pads = [(before, max(after, 0)) for before, after in self._pads]
        phases = tf.space_to_batch(x, self._block, pads)
        if not self._strided:
            return [phases]
        return [
            _first(phase, _sums(self._output, window))
            for phase, window in zip(
                tf.split(phases, math.prod(self._block)),
                self._windows(),
                strict=True,
            )
            if min(window) > 0
        ]

    def kernels(self, kernel: tf.Tensor) -> list[tf.Tensor]:
        """The weights of each phase that has any."""
        if not self._strided:
            return [kernel]
        return [
            kernel[
                tuple(
                    slice(p, None, stride)
                    for p, stride in zip(phase, self._block, strict=True)
                )
            ]
            for phase, window in zip(
                _phases(self._block), self._windows(), strict=True
            )
            if min(window) > 0
        ]

    def maps(self, dy: tf.Tensor) -> tf.Tensor:
        """Gradients of feature maps, in phases where there are any."""
        if self._strided:
            return dy
        return tf.space_to_batch(dy, self._block, self._maps_left_over())

    def joined_maps(self, maps: Sequence[tf.Tensor]) -> tf.Tensor:
        """The feature maps, joined from those of phases."""
        if self._strided:
            return maps[0] if len(maps) == 1 else tf.add_n(maps)
        return tf.batch_to_space(maps[0], self._block, self._maps_left_over())

    def joined_images(self, images: Sequence[tf.Tensor]) -> tf.Tensor:
        """The images, joined from those of phases that have weights."""
        crops = [(before, max(after, 0)) for before, after in self._pads]
        x = self._joined_phases(images, self._pixels, crops)
        uncovered = [(0, max(-after, 0)) for _, after in self._pads]
        if not any(after for _, after in uncovered):
            return x
        return tf.pad(x, [(0, 0), *uncovered, (0, 0)])

    def joined_kernels(self, kernels: Sequence[tf.Tensor]) -> tf.Tensor:
        """The kernel, joined from those of phases that have weights."""
        if not self._strided:
            return kernels[0]
        # As images of so many channels.
        depth = kernels[0].shape[-2:]
        images = [
            tf.reshape(k, [1, *k.shape[:-2], math.prod(depth)]) for k in kernels
        ]
        crops = [
            (0, n * stride - window)
            for n, stride, window in zip(
                self._window, self._block, self._geometry.window, strict=True
            )
        ]
        kernel = self._joined_phases(images, self._window, crops)
        return tf.reshape(kernel, [*self._geometry.window, *depth])

    def _maps_left_over(self) -> list[tuple[int, int]]:
        return [
            (0, n * rate - (out or 0))
            for n, rate, out in zip(
                self._output, self._block, self._geometry.output, strict=True
            )
        ]

    def _joined_phases(
        self,
        phases: Sequence[tf.Tensor],
        sizes: Sequence[int],
        crops: Sequence[tuple[int, int]],
    ) -> tf.Tensor:
        """Joins phases, each with zeros up to `sizes`."""
        remaining = iter(phases)
        all_phases = []
        for window in self._windows():
            if min(window) > 0:
                phase = next(remaining)
                padding = [
                    (0, size - phase_size)
                    for size, phase_size in zip(
                        sizes, phase.shape[1:-1], strict=True
                    )
                ]
                all_phases.append(tf.pad(phase, [(0, 0), *padding, (0, 0)]))
            else:
                images, *_, channels = sizes_of(phases[0])
                zeros = tf.zeros([images, *sizes, channels], phases[0].dtype)
                all_phases.append(zeros)
        return tf.batch_to_space(tf.concat(all_phases, 0), self._block, crops)


def _up(n: int, unit: int) -> int:
    return -(-n // unit)


def _phases(block: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, block))


def _sums(maps: Sequence[int], window: Sequence[int]) -> tuple[int, ...]:
    """The pixels that windows reach over, for so many feature maps."""
    return tuple(m + w - 1 for m, w in zip(maps, window, strict=True))


def _first(images: tf.Tensor, sizes: Sequence[int]) -> tf.Tensor:
    return images[(slice(None), *(slice(0, n) for n in sizes))]
