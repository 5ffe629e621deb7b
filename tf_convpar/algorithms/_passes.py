"""The three passes of a convolution, each by an algorithm of its own.

Forward `y = conv(x, k)`, input gradient `dx = conv'(dy, k)` and kernel
gradient `dk = conv''(x, dy)` are the three partial derivatives of one form
that is linear in each of `x`, `k` and `dy`. So the gradients of each of them
are the two others, and three functions that name one another have
derivatives of any order, all by the algorithms chosen.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record

from tf_convpar.algorithms import _bilinear
from tf_convpar.algorithms import _fft
from tf_convpar.algorithms import _winograd
from tf_convpar.algorithms._algorithm import FORWARD
from tf_convpar.algorithms._algorithm import INPUT_GRADIENT
from tf_convpar.algorithms._algorithm import KERNEL_GRADIENT
from tf_convpar.algorithms._algorithm import Algorithm
from tf_convpar.algorithms._algorithm import Geometry
from tf_convpar.algorithms._bilinear import Bilinear
from tf_convpar.algorithms._direct import Direct
from tf_convpar.algorithms._gemm import Gemm
from tf_convpar.algorithms._tiles import sizes_of

# Batches that stand for all where it is unknown, and where the next begins.
BATCHES = (1, 8, 32)
_BEGINS = (4, 16)

_DIRECT = Direct()
_GEMM = Gemm()
_TILES: dict[str, Callable[[Geometry], list[tuple[int, ...]]]] = {
    "winograd": _winograd.tiles,
    "fft": _fft.tiles,
}


@dataclasses.dataclass(frozen=True)
class Choice:
    """One algorithm for each pass.

    ```python
    Choice(Bilinear("winograd", (4, 4)), direct, direct)
    ```
    """

    forward: Algorithm
    input_gradient: Algorithm
    kernel_gradient: Algorithm

    @property
    def is_direct(self) -> bool:
        """Whether nothing but TensorFlow's own convolution is used."""
        passes = (self.forward, self.input_gradient, self.kernel_gradient)
        return all(algorithm.name == "direct" for algorithm in passes)


def named(name: str, geometry: Geometry) -> Algorithm:
    """The algorithm of that name.

    ```python
    named("winograd", geometry)  # the tile with the fewest products
    named("winograd:4", geometry)  # tiles of 4 outputs on every axis
    named("fft:10x6", geometry)  # of 10 and 6
    ```

    Direct where a family has no tile for this geometry.

    Raises:
        ValueError: There is no such algorithm.
    """
    check_name(name)
    if name == "direct":
        return _DIRECT
    if name == "gemm":
        return _GEMM
    kind, _, sizes = name.partition(":")
    tile = tuple(map(int, sizes.split("x"))) if sizes else None
    return _find(kind, tile, dataclasses.replace(geometry, batch=None))


@functools.lru_cache(maxsize=4096)
def _find(
    kind: str, tile: tuple[int, ...] | None, geometry: Geometry
) -> Algorithm:
    rank = len(geometry.window)
    if tile is not None:
        return Bilinear(kind, tile * rank if len(tile) == 1 else tile)
    if not geometry.is_dense:
        return _DIRECT
    for best in _TILES[kind](geometry):
        return Bilinear(kind, best)
    return _DIRECT


def check_name(name: Any) -> None:
    """Raises ValueError unless `name` is an algorithm, with or without tile."""
    kinds = "|".join(_bilinear.KINDS)
    pattern = rf"direct|gemm|({kinds})(:[1-9]\d{{0,2}}(x[1-9]\d{{0,2}})*)?"
    if not isinstance(name, str) or not re.fullmatch(pattern, name):
        raise ValueError(
            'Expected `algorithm` to be "auto", "direct", "fft", "winograd" '
            'or "gemm"; a tile size may follow a colon: "winograd:4". '
            f"Received: {name!r}."
        )


def by_name(name: str, geometry: Geometry) -> Choice:
    """That algorithm for each pass that it does not refuse, else direct."""
    algorithm = named(name, geometry)
    return Choice(
        *(
            _DIRECT if algorithm.refuses(geometry, which) else algorithm
            for which in (FORWARD, INPUT_GRADIENT, KERNEL_GRADIENT)
        )
    )


def by_measurement(geometry: Geometry, device: str | None) -> Choice:
    """The fastest for each pass, whatever the batch turns out to be."""
    # Imported late: it measures what this module offers.
    from tf_convpar.algorithms._choose import choose

    if geometry.batch is not None:
        return choose(geometry, device)
    choices = [
        choose(dataclasses.replace(geometry, batch=batch), device)
        for batch in BATCHES
    ]
    return Choice(
        _by_batch([choice.forward for choice in choices]),
        _by_batch([choice.input_gradient for choice in choices]),
        _by_batch([choice.kernel_gradient for choice in choices]),
    )


def convolution(
    x: tf.Tensor,
    kernel: tf.Tensor,
    geometry: Geometry,
    choice: Choice,
    bias: tf.Tensor | None = None,
    remember: bool = False,
) -> tf.Tensor:
    """The feature maps, each of whose gradients is computed as chosen.

    ```python
    y = convolution(x, kernel, geometry, by_name("winograd", geometry))
    ```

    Args:
        x: `(batch, *image, channels)`.
        kernel: `(*window, channels, filters)`.
        geometry: Theirs.
        choice: An algorithm for each pass.
        bias: One value for each filter, added.
        remember: Whether kernels' spectra are kept for the next call.
    """
    if choice.is_direct:
        return _DIRECT.forward(x, kernel, geometry, bias)
    passes = _Passes(geometry, choice, remember)
    if bias is None:
        return passes.forward(x, kernel)
    return passes.forward_with_bias(x, kernel, bias)


class _Passes:
    """The three functions, for one convolution.

    What is inside an algorithm is hidden from tapes: they would keep its
    intermediate results for a gradient that nobody asks for, and functions
    and branches would need one of every op.
    """

    def __init__(
        self, geometry: Geometry, choice: Choice, remember: bool
    ) -> None:
        self._geometry = geometry
        self._choice = choice
        self._remember = remember

    def forward(self, x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def run(x: tf.Tensor, kernel: tf.Tensor) -> Any:
            return self._forward(x, kernel, None), self._gradients(x, kernel)

        return run(x, kernel)

    def forward_with_bias(
        self, x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor
    ) -> tf.Tensor:
        @tf.custom_gradient
        def run(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> Any:
            gradients = self._gradients(x, kernel)

            def gradient(dy: tf.Tensor) -> Any:
                # Its own op: several times as fast as a sum over axes.
                return *gradients(dy), tf.raw_ops.BiasAddGrad(out_backprop=dy)

            return self._forward(x, kernel, bias), gradient

        return run(x, kernel, bias)

    def input_gradient(
        self, dy: tf.Tensor, kernel: tf.Tensor, shape: Any
    ) -> tf.Tensor:
        geometry, algorithm = self._geometry, self._choice.input_gradient

        @tf.custom_gradient
        def run(dy: tf.Tensor, kernel: tf.Tensor) -> Any:
            def gradient(ddx: tf.Tensor) -> Any:
                return self.forward(ddx, kernel), self.kernel_gradient(ddx, dy)

            with record.stop_recording():
                dx = algorithm.input_gradient(dy, kernel, geometry, shape)
            return dx, gradient

        return run(dy, kernel)

    def kernel_gradient(self, x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        geometry, algorithm = self._geometry, self._choice.kernel_gradient
        shape = sizes_of(x)

        @tf.custom_gradient
        def run(x: tf.Tensor, dy: tf.Tensor) -> Any:
            def gradient(ddk: tf.Tensor) -> Any:
                return self.input_gradient(dy, ddk, shape), self.forward(x, ddk)

            with record.stop_recording():
                dk = algorithm.kernel_gradient(x, dy, geometry)
            return dk, gradient

        return run(x, dy)

    def _forward(
        self, x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor | None
    ) -> tf.Tensor:
        with record.stop_recording():
            return self._choice.forward.forward(
                x, kernel, self._geometry, bias, self._remember
            )

    def _gradients(self, x: tf.Tensor, kernel: tf.Tensor) -> Any:
        shape = sizes_of(x)

        def gradient(dy: tf.Tensor) -> Any:
            return (
                self.input_gradient(dy, kernel, shape),
                self.kernel_gradient(x, dy),
            )

        return gradient


def _by_batch(algorithms: Sequence[Algorithm]) -> Algorithm:
    if len({algorithm.name for algorithm in algorithms}) == 1:
        return algorithms[0]
    return _ByBatch(algorithms)


class _ByBatch(Algorithm):
    """One of several, when the batch is known at last: at run time."""

    def __init__(self, algorithms: Sequence[Algorithm]) -> None:
        self._algorithms = algorithms
        self.name = "|".join(algorithm.name for algorithm in algorithms)

    def refuses(self, geometry: Geometry, which: str) -> str | None:
        for algorithm in self._algorithms:
            reason = algorithm.refuses(geometry, which)
            if reason is not None:
                return reason
        return None

    def forward(
        self,
        x: tf.Tensor,
        kernel: tf.Tensor,
        geometry: Geometry,
        bias: tf.Tensor | None = None,
        remember: bool = False,
    ) -> tf.Tensor:
        return self._switch(
            x,
            lambda algorithm: algorithm.forward(
                x, kernel, geometry, bias, remember
            ),
        )

    def input_gradient(
        self,
        dy: tf.Tensor,
        kernel: tf.Tensor,
        geometry: Geometry,
        input_shape: Any,
    ) -> tf.Tensor:
        return self._switch(
            dy,
            lambda algorithm: algorithm.input_gradient(
                dy, kernel, geometry, input_shape
            ),
        )

    def kernel_gradient(
        self, x: tf.Tensor, dy: tf.Tensor, geometry: Geometry
    ) -> tf.Tensor:
        return self._switch(
            x, lambda algorithm: algorithm.kernel_gradient(x, dy, geometry)
        )

    def multiplications(self, geometry: Geometry, which: str) -> int:
        return max(a.multiplications(geometry, which) for a in self._algorithms)

    def workspace(self, geometry: Geometry, which: str) -> int:
        return max(a.workspace(geometry, which) for a in self._algorithms)

    def _switch(
        self, x: tf.Tensor, run: Callable[[Algorithm], tf.Tensor]
    ) -> tf.Tensor:
        batch = tf.shape(x)[0]
        index = tf.add_n([tf.cast(batch >= n, tf.int32) for n in _BEGINS])
        return tf.switch_case(
            index,
            [
                functools.partial(run, algorithm)
                for algorithm in self._algorithms
            ],
        )
