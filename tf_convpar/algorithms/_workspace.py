"""Memory that the compiled ops take beside arguments and results.

The library says it itself, by the sizes that its kernels go by: for any
number of threads and any instruction set, so that another machine's can be
asked for here.
"""

from __future__ import annotations

import ctypes
import os
from typing import NamedTuple

import tensorflow as tf

from tf_convpar import machines
from tf_convpar import ops
from tf_convpar.algorithms._stages import Program
from tf_convpar.algorithms._stages import Transforms

WIDEST = "TF_CONVPAR_WIDEST_ISA"


class Processor(NamedTuple):
    """The facts about a processor on which memory depends.

    ```python
    Processor(threads=8, vectors="avx512")
    ```

    Attributes:
        threads: Number of threads of an operation.
        vectors: Instruction set of the compiled ops: `"avx512"`, `"avx2"` or
            `"base"`; None for the one that they use in this process.
    """

    threads: int
    vectors: str | None = None


def threads() -> int:
    """Number of threads that TensorFlow gives to one op on this CPU."""
    configured = tf.config.threading.get_intra_op_parallelism_threads()
    return int(configured) if configured else len(machines.usable_cores())


class Extent(ctypes.Structure):
    """`Extent` of `custom_ops/bilinear/sizes.h`, field by field."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "points",
            "tiles",
            "channels",
            "filters",
            "image_largest",
            "maps_largest",
            "kernel_largest",
            "threads",
        )
    ]


def forward_bytes(
    transforms: Transforms,
    channels: int,
    filters: int,
    tiles: int,
    on: Processor | None = None,
) -> int:
    """Bytes that `BilinearForward` needs, where the compiled ops are in use.

    Args:
        transforms: Transforms of the algorithm.
        channels: Number of channels of the images that are transformed. In the
            pass of the input gradient those are the feature maps.
        filters: Number of channels of the result.
        tiles: Number of tiles of all images.
        on: Processor that computes the pass; None for this process'.

    Raises:
        ValueError: There is no such instruction set.
    """
    extent = _extent(transforms, channels, filters, tiles, on)
    return _bytes_by_library("TfConvparForwardBytes", extent, on)


def kernel_gradient_bytes(
    transforms: Transforms,
    channels: int,
    filters: int,
    tiles: int,
    on: Processor | None = None,
) -> int:
    """Bytes that `BilinearKernelGradient` needs; see `forward_bytes`."""
    extent = _extent(transforms, channels, filters, tiles, on)
    return _bytes_by_library("TfConvparKernelGradientBytes", extent, on)


def _extent(
    transforms: Transforms,
    channels: int,
    filters: int,
    tiles: int,
    on: Processor | None,
) -> Extent:
    return Extent(
        points=transforms.points,
        tiles=tiles,
        channels=channels,
        filters=filters,
        # Transposed programs have stages as large.
        image_largest=_largest(transforms.image),
        maps_largest=_largest(transforms.maps),
        kernel_largest=_largest(transforms.kernel),
        threads=threads() if on is None else on.threads,
    )


def _bytes_by_library(name: str, extent: Extent, on: Processor | None) -> int:
    vectors = None if on is None else on.vectors
    function = getattr(ops.functions(), name)
    function.restype = ctypes.c_int64
    bytes_ = int(function(vectors and vectors.encode(), ctypes.byref(extent)))
    if bytes_ < 0:
        raise ValueError(
            "Expected an instruction set: avx512, avx2 or base. Received: "
            f"{vectors or os.environ.get(WIDEST)}."
        )
    return bytes_


def _largest(program: Program) -> int:
    """Number of values of the largest stage, before or after it."""
    return max(
        stage.outer * stage.inner * max(stage.matrix.shape)
        for stage in program.stages
    )
