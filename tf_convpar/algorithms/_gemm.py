"""Convolution as one matrix product of unfolded images (im2col).

Each window of the input is written out as a row. With `n` outputs of all
images this gives a matrix (n, |window| c). The feature maps are its product
with the kernel as a matrix (|window| c, f), and the kernel's gradient is the
product of its transpose with `dy` as (n, f). The input's gradient is such a
product too, of unfolded gradients `dy` and the kernel turned by 180 degrees.

Cost: the direct algorithm's multiplications, `n |window| c f`, at the speed
of one large matrix product. Bytes: the unfolded images are the workspace. They
are `|window|` times as large as the images, and are written once and read once.
A kernel of one pixel needs no unfolding: only the result is written.

Source: K. Chellapilla, S. Puri and P. Simard, *High Performance Convolutional
Neural Networks for Document Processing* (2006), section 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar import ops
from tf_convpar.algorithms._algorithm import INPUT_GRADIENT
from tf_convpar.algorithms._algorithm import Algorithm
from tf_convpar.algorithms._algorithm import Geometry
from tf_convpar.algorithms._tensors import sizes_of
from tf_convpar.algorithms._tensors import turn
from tf_convpar.algorithms._tensors import wide_dtype
from tf_convpar.algorithms._tensors import windows
from tf_convpar.algorithms._workspace import Processor
from tf_convpar.ops import NOTHING
from tf_convpar.ops import Epilogue


class Gemm(Algorithm):
    """Unfolds windows and multiplies; takes strides in all passes but one.

    ```python
    Gemm().forward(x, kernel, geometry)
    ```
    """

    name = "gemm"

    def refuses(self, geometry: Geometry, which: str) -> str | None:
        """The reason why it does not compute this pass; None if it does."""
        if any(n > 1 for n in geometry.dilation):
            return "Dilated windows are left to the direct algorithm."
        if which == INPUT_GRADIENT and not geometry.is_dense:
            return "Strides would unfold zeros between feature maps."
        return None

    def forward(
        self,
        x: tf.Tensor,
        kernel: tf.Tensor,
        geometry: Geometry,
        epilogue: Epilogue = NOTHING,
    ) -> tf.Tensor:
        """The feature maps; the compiled op remembers the kernel's panels."""
        pads = _pads(sizes_of(x)[1:-1], geometry)
        return _multiply(x, kernel, pads, geometry.strides, epilogue)

    def input_gradient(
        self,
        dy: tf.Tensor,
        kernel: tf.Tensor,
        geometry: Geometry,
        input_shape: Any,
    ) -> tf.Tensor:
        """The gradient for `x`; its shape follows from that of `dy`."""
        if math.prod(geometry.window) == 1:
            # The product turns the kernel as it reads it.
            return _multiply(dy, kernel, (), geometry.strides, turned=True)
        return _multiply(
            dy, turn(kernel), geometry.turned_pads, geometry.strides
        )

    def kernel_gradient(
        self, x: tf.Tensor, dy: tf.Tensor, geometry: Geometry
    ) -> tf.Tensor:
        """The gradient for the kernel."""
        channels, filters = sizes_of(x)[-1], sizes_of(dy)[-1]
        window = geometry.window
        wide = wide_dtype(x.dtype)
        pads = _pads(sizes_of(x)[1:-1], geometry)
        rows = _unfold(tf.cast(x, wide), window, pads, geometry.strides)
        maps = tf.reshape(tf.cast(dy, wide), [_rows_of(dy), filters])
        dk = tf.matmul(
            tf.reshape(rows, [_rows_of(dy), math.prod(window) * channels]),
            maps,
            transpose_a=True,
        )
        dk = tf.reshape(dk, [*window, channels, filters])
        return tf.cast(dk, x.dtype)

    def multiplications(self, geometry: Geometry, which: str) -> int:
        """As many multiplications as the direct algorithm has."""
        return geometry.multiplications

    def workspace(
        self, geometry: Geometry, which: str, on: Processor | None = None
    ) -> int:
        """Bytes of the unfolded images; 0 for kernels of one pixel."""
        if math.prod(geometry.window) == 1:
            return 0
        sizes, channels = geometry.output, geometry.channels
        if which == INPUT_GRADIENT:
            sizes, channels = geometry.image, geometry.filters
        counts = (1 if n is None else n for n in (*sizes, geometry.batch))
        values = math.prod(counts) * math.prod(geometry.window) * channels
        return int(values * wide_dtype(tf.as_dtype(geometry.dtype)).size)


def _multiply(
    x: tf.Tensor,
    kernel: tf.Tensor,
    pads: Sequence[tuple[Any, Any]],
    strides: Sequence[int],
    epilogue: Epilogue = NOTHING,
    turned: bool = False,
) -> tf.Tensor:
    window = kernel.shape[:-2].as_list()
    channels, filters = sizes_of(kernel)[-2:]
    if turned:
        channels, filters = filters, channels
    wide = wide_dtype(x.dtype)
    rows = _unfold(tf.cast(x, wide), window, pads, strides)
    shape = sizes_of(rows)[: len(window) + 1]
    depth = math.prod(window) * channels
    rows = tf.reshape(rows, [math.prod(shape), depth])
    kernel = tf.reshape(
        tf.cast(kernel, wide),
        [filters, depth] if turned else [depth, filters],
    )
    epilogue = epilogue.cast(wide)
    if epilogue.remember and wide == tf.float32 and ops.load():
        maps = ops.convolution(
            tf.reshape(rows, [1, 1, -1, depth]),
            tf.reshape(kernel, [1, 1, depth, filters]),
            epilogue,
        )
    else:
        # Right after the product: TensorFlow fuses these into one op.
        maps = epilogue.applied(tf.matmul(rows, kernel, transpose_b=turned))
    return tf.cast(tf.reshape(maps, [*shape, filters]), x.dtype)


def _unfold(
    x: tf.Tensor,
    window: Sequence[int],
    pads: Sequence[tuple[Any, Any]],
    strides: Sequence[int],
) -> tf.Tensor:
    """The windows as rows, `(batch, *output, *window, channels)`.

    A window of one pixel is not unfolded: `(batch, *output, channels)`.
    """
    if math.prod(window) == 1:
        # No copy, unless strides skip pixels.
        every = (slice(None, None, stride) for stride in strides)
        return x[(slice(None), *every)] if max(strides) > 1 else x
    x = tf.pad(x, [(0, 0), *pads, (0, 0)])
    counts = [
        (size - w) // stride + 1
        for size, w, stride in zip(
            sizes_of(x)[1:-1], window, strides, strict=True
        )
    ]
    return windows(x, counts, window, strides)


def _pads(image: Sequence[Any], geometry: Geometry) -> list[tuple[Any, Any]]:
    """Zeros before and after each axis; with strides its size counts too."""
    if geometry.padding == "valid" or geometry.is_dense:
        return list(geometry.pads)
    pads = []
    for size, window, stride in zip(
        image, geometry.window, geometry.strides, strict=True
    ):
        missing = (-(-size // stride) - 1) * stride + window - size
        if isinstance(missing, int):
            missing = max(missing, 0)
        else:
            missing = tf.maximum(missing, 0)
        pads.append((missing // 2, missing - missing // 2))
    return pads


def _rows_of(maps: tf.Tensor) -> Any:
    return math.prod(sizes_of(maps)[:-1])
