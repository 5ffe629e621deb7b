"""Bilinear algorithms: `y = A [(G k) * (B x)]`.

A convolution is linear in its input and in its kernel. So for tiles of a
fixed size it can be written with three linear maps and products between them:
`B` takes a tile of the input to its spectrum, `G` takes the kernel to its own,
the two are multiplied point by point, and `A` takes the products to a tile of
the feature maps. Tiles of the input overlap by `window - 1` pixels, those of
the feature maps do not. With `c` channels and `f` filters the product at each
point is a matrix product, (tiles, c) times (c, f): `A` is linear, and may wait
until channels have been summed.

Gradients are the transposes. For the kernel

    dk = G' [(B x)' (A' dy)],

summed over tiles before `G'` is applied, and for the input

    dx = B' [(G k) (A' dy)],

whose tiles overlap and are added. The twin uses the first formula for the
input's gradient too: it is a convolution of `dy`, padded by `window - 1 - pad`,
with the kernel turned by 180 degrees, its channels and filters exchanged.

Cost, with `p` points and `t` tiles of all images: `t p c f` multiplications
for the products, and the transforms' `t c |B| + t f |A| + c f |G|`, where
`|M|` counts what is not zero in M's factors. Bytes: images and feature maps
are read and written once. The kernel's spectrum, `p/window` times as large as
the kernel, is written once and read once for each block of tiles. Between few
channels and many filters, or the other way round, blocks are also cut along
the longer side: what is summed then stays in a core's own cache. Workspace:
the kernel's spectrum and the spectra of a block of tiles, see
`custom_ops/bilinear/sizes.h`;
the twin holds the spectra of all tiles.

Sources: S. Winograd, *Arithmetic Complexity of Computations* (1980), chapter
5, has the form and its transposes; each algorithm's module names those of its
matrices.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tf_convpar import ops
from tf_convpar.algorithms import _tiles
from tf_convpar.algorithms import _workspace
from tf_convpar.algorithms import fft
from tf_convpar.algorithms import winograd
from tf_convpar.algorithms._algorithm import FORWARD
from tf_convpar.algorithms._algorithm import INPUT_GRADIENT
from tf_convpar.algorithms._algorithm import KERNEL_GRADIENT
from tf_convpar.algorithms._algorithm import Algorithm
from tf_convpar.algorithms._algorithm import Geometry
from tf_convpar.algorithms._stages import Transforms
from tf_convpar.algorithms._tensors import turn
from tf_convpar.algorithms._tensors import wide_dtype
from tf_convpar.algorithms._workspace import Processor
from tf_convpar.ops import NOTHING
from tf_convpar.ops import Epilogue

_TRANSFORMS = {"winograd": winograd.transforms, "fft": fft.transforms}
KINDS = tuple(_TRANSFORMS)


@functools.cache
def instruction_set() -> str | None:
    """The instruction set of the compiled ops here; None if the twin serves.

    ```python
    instruction_set()  # "avx512", "avx2" or "base"
    ```

    The environment variable `TF_CONVPAR_WIDEST_ISA` limits it.

    Raises:
        ValueError: That variable names no instruction set.
    """
    if not ops.load():
        return None
    with tf.init_scope(), tf.device("CPU"):
        try:
            name = ops.module().TfConvpar_InstructionSet()
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(str(error.message)) from None
        return str(name.numpy().decode())


def instruction_set_of(device: str) -> str | None:
    """`instruction_set` of another process; None if it has no compiled ops.

    Args:
        device: Name of a device of that process.
    """
    if not ops.load():
        return None
    with tf.init_scope(), tf.device(device):
        try:
            name = ops.module().TfConvpar_InstructionSet()
            return str(name.numpy().decode())
        except tf.errors.OpError:
            return None


class Bilinear(Algorithm):
    """One family of transforms, for tiles of one size.

    ```python
    Bilinear("winograd", (4, 4)).forward(x, kernel, geometry)
    ```

    Computes in float32, or in float64 if the inputs are float64. Narrower
    floats are converted on the way in and out.

    Args:
        kind: `"winograd"` or `"fft"`.
        tile: Number of outputs of a tile on each spatial axis.
        native: False for the TensorFlow twin; None for the compiled ops where
            they are in use and take the dtype, and the twin elsewhere.
    """

    def __init__(
        self, kind: str, tile: Sequence[int], native: bool | None = None
    ) -> None:
        self.kind = kind
        self.tile = tuple(tile)
        self.native = native
        sizes = self.tile[:1] if len(set(self.tile)) == 1 else self.tile
        self.name = f"{kind}:{'x'.join(map(str, sizes))}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bilinear) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def _key(self) -> tuple[Any, ...]:
        return (self.kind, self.tile, self.native)

    def refuses(self, geometry: Geometry, which: str) -> str | None:
        """The reason why it does not compute this pass; None if it does."""
        window = geometry.window
        if len(window) > 3 or len(window) != len(self.tile):
            return f"Tiles of {len(self.tile)} axes, and {len(window)} axes."
        if not geometry.is_dense:
            return "Strides and dilation leave nothing to share in a tile."
        if all(size == 1 for size in window):
            return "A window of one pixel is one matrix product."
        pixels = map(_pixels, self.tile, window)
        if math.prod(pixels) > fft.MOST_VALUES:
            return f"Tiles have at most {fft.MOST_VALUES} pixels."
        try:
            self.transforms(geometry)
        except ValueError as error:
            return str(error)
        return None

    def transforms(self, geometry: Geometry) -> Transforms:
        """The matrices B, G and A for the window of `geometry`."""
        return _TRANSFORMS[self.kind](self.tile, geometry.window)

    def forward(
        self,
        x: tf.Tensor,
        kernel: tf.Tensor,
        geometry: Geometry,
        epilogue: Epilogue = NOTHING,
    ) -> tf.Tensor:
        """The feature maps; the compiled op does all in one pass."""
        wide = wide_dtype(x.dtype)
        images, wide_kernel = tf.cast(x, wide), tf.cast(kernel, wide)
        if self._is_compiled(wide):
            maps = _run_op(
                (images, wide_kernel, _bias_or_none(epilogue.bias)),
                self._op(geometry, FORWARD, epilogue),
            )
            return tf.cast(maps, x.dtype)
        maps = _tiles.forward(
            images,
            wide_kernel,
            self.transforms(geometry),
            self.tile,
            geometry.pads,
        )
        return tf.cast(epilogue.cast(wide).applied(maps), x.dtype)

    def input_gradient(
        self,
        dy: tf.Tensor,
        kernel: tf.Tensor,
        geometry: Geometry,
        input_shape: Any,
    ) -> tf.Tensor:
        """The gradient for `x`; its shape follows from that of `dy`."""
        wide = wide_dtype(dy.dtype)
        maps, wide_kernel = tf.cast(dy, wide), tf.cast(kernel, wide)
        if self._is_compiled(wide):
            dx = _run_op(
                (maps, wide_kernel, _bias_or_none(None)),
                self._op(geometry, INPUT_GRADIENT),
            )
        else:
            dx = _tiles.forward(
                maps,
                turn(wide_kernel),
                self.transforms(geometry),
                self.tile,
                geometry.turned_pads,
            )
        return tf.cast(dx, dy.dtype)

    def kernel_gradient(
        self, x: tf.Tensor, dy: tf.Tensor, geometry: Geometry
    ) -> tf.Tensor:
        """The gradient for the kernel."""
        wide = wide_dtype(x.dtype)
        operands = tf.cast(x, wide), tf.cast(dy, wide)
        if self._is_compiled(wide):
            dk = _run_op(operands, self._op(geometry, KERNEL_GRADIENT))
        else:
            dk = _tiles.kernel_gradient(
                *operands,
                self.transforms(geometry),
                geometry.window,
                self.tile,
                geometry.pads,
            )
        return tf.cast(dk, x.dtype)

    def multiplications(self, geometry: Geometry, which: str) -> int:
        """Number of multiplications; see this module's docstring."""
        transforms = self.transforms(geometry)
        channels, filters = geometry.channels, geometry.filters
        tiles = self._count_tiles(geometry)
        return (
            tiles * transforms.points * channels * filters
            + tiles * channels * transforms.image.multiplications
            + tiles * filters * transforms.maps.multiplications
            + channels * filters * transforms.kernel.multiplications
        )

    def workspace(
        self, geometry: Geometry, which: str, on: Processor | None = None
    ) -> int:
        """Bytes that a pass needs beside its arguments and its result."""
        transforms = self.transforms(geometry)
        channels, filters = geometry.channels, geometry.filters
        tiles = self._count_tiles(geometry)
        dtype = wide_dtype(tf.as_dtype(geometry.dtype))
        if self._is_compiled(dtype):
            if which == KERNEL_GRADIENT:
                formula = _workspace.kernel_gradient_bytes
            else:
                formula = _workspace.forward_bytes
            if which == INPUT_GRADIENT:
                channels, filters = filters, channels
            return formula(transforms, channels, filters, tiles, on)
        # The twin cuts tiles out before it transforms them.
        values = transforms.points * (
            tiles * (channels + filters) + channels * filters
        ) + tiles * max(
            channels * transforms.image.inputs,
            filters * transforms.maps.outputs,
        )
        return int(values * dtype.size)

    def _count_tiles(self, geometry: Geometry) -> int:
        """Number of tiles of all images; an unknown size counts as 1 tile."""
        return math.prod(
            1 if size is None else -(-size // m)
            for size, m in zip(
                (geometry.batch, *geometry.output), (1, *self.tile), strict=True
            )
        )

    def _op(
        self,
        geometry: Geometry,
        which: str,
        epilogue: Epilogue = NOTHING,
    ) -> _Op:
        return _Op(
            self.kind,
            self.tile,
            geometry.window,
            geometry.pads,
            which,
            epilogue.remember,
            epilogue.activation == "relu",
        )

    def _is_compiled(self, dtype: tf.DType) -> bool:
        if self.native is False or dtype != tf.float32:
            return False
        return ops.load()


def _pixels(outputs: int, window: int) -> int:
    return outputs + window - 1


def _bias_or_none(bias: tf.Tensor | None) -> tf.Tensor:
    """The bias as the op takes it: no bias is an empty tensor."""
    if bias is None:
        return tf.zeros([0])
    return tf.cast(bias, tf.float32)


class _Op(NamedTuple):
    """A compiled op with its attributes."""

    kind: str
    tile: tuple[int, ...]
    window: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    which: str
    remember: bool
    relu: bool

    def run(self, *operands: tf.Tensor) -> tf.Tensor:
        module = ops.module()
        attributes = {
            "step": self.tile,
            "pad_before": [before for before, _ in self.pads],
            "pad_after": [after for _, after in self.pads],
            **_programs(self.kind, self.tile, self.window, self.which),
        }
        if self.which == KERNEL_GRADIENT:
            x, dy = operands
            return module.TfConvpar_BilinearKernelGradient(
                x=x, dy=dy, window=self.window, **attributes
            )
        x, kernel, bias = operands
        return module.TfConvpar_BilinearForward(
            x=x,
            kernel=kernel,
            bias=bias,
            adjoint=self.which == INPUT_GRADIENT,
            remember=self.remember,
            relu=self.relu,
            **attributes,
        )


def _run_op(operands: Sequence[tf.Tensor], op: _Op) -> tf.Tensor:
    if tf.executing_eagerly():
        return _as_function(op)(*operands)
    return op.run(*operands)


@functools.cache
def _as_function(op: _Op) -> Callable[..., tf.Tensor]:
    """The op as a function for eager calls, which reads its programs once.

    Programs are thousands of numbers, and take milliseconds to hand over.
    """
    image = tf.TensorSpec([None] * (len(op.window) + 2))
    operands = [image, image]
    if op.which != KERNEL_GRADIENT:
        operands.append(tf.TensorSpec([None]))
    # Traced once, by itself: TensorFlow would warn of functions made in a loop.
    function = tf.function(op.run, autograph=False)
    return function.get_concrete_function(*operands)


@functools.cache
def _programs(
    kind: str, tile: tuple[int, ...], window: tuple[int, ...], which: str
) -> dict[str, list[Any]]:
    """The three programs of a pass, as the compiled ops take them."""
    transforms = _TRANSFORMS[kind](tile, window)
    programs = {
        "image": transforms.image,
        "maps": transforms.maps,
        "kernel": transforms.kernel,
    }
    if which == INPUT_GRADIENT:
        programs["image"] = transforms.maps.transposed
        programs["maps"] = transforms.image.transposed
    if which == KERNEL_GRADIENT:
        programs["maps"] = transforms.maps.transposed
        programs["kernel"] = transforms.kernel.transposed
    return {
        key: value
        for name, program in programs.items()
        for key, value in (
            (f"{name}_structure", program.structure()),
            (f"{name}_values", program.values()),
        )
    }
