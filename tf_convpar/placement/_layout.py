"""Layouts: which device has which channels, or which samples."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any
from typing import TypeAlias

import tensorflow as tf


class _Shards:
    """What layouts of channels and of samples have in common."""

    wire: str | None

    def matches(self, other: AnyLayout) -> bool:
        """Whether both put the same shards on the same devices.

        The wire dtypes may differ.
        """
        return _but_wire(self) == _but_wire(other)

    def wire_dtype(self, dtype: Any) -> tf.DType:
        """The dtype in which tensors of `dtype` travel, never a wider one.

        A wider one would only cost bytes.
        """
        computed = tf.as_dtype(dtype)
        wire = tf.as_dtype(self.wire or computed)
        return wire if wire.size < computed.size else computed


@dataclasses.dataclass(frozen=True)
class Layout(_Shards):
    """The layout of a channel axis: which device holds how many channels.

    Example:
    ```python
    layout = Layout(
        owner="/job:chief/replica:0/task:0/device:CPU:0",
        devices=(
            "/job:chief/replica:0/task:0/device:CPU:0",
            "/job:worker/replica:0/task:0/device:GPU:0",
        ),
        sizes=(8, 24),
    )
    ```

    Args:
        owner: The device that holds whatever is not cut: inputs, joined
            feature maps, merged values.
        devices: One device name per shard.
        sizes: Channels per shard, each at least 1 (a device without channels
            is left out of the layout).
        axis: The axis that is cut, negative: -1 for the kernels and biases of
            ordinary convolutions.
        blocks: Number of pixels on the axis, if feature maps have been
            flattened; otherwise 1. Such an axis holds the channels of one
            pixel after those of another, and the channels of each are cut.
        wire: The dtype in which shards travel; None for their own.
    """

    owner: str
    devices: tuple[str, ...]
    sizes: tuple[int, ...]
    axis: int = -1
    blocks: int = 1
    wire: str | None = None

    def __post_init__(self) -> None:
        if len(self.devices) != len(self.sizes) or not self.sizes:
            raise ValueError(
                "Expected one size per device, and at least one. Received "
                f"{len(self.devices)} devices and {len(self.sizes)} sizes."
            )
        if min(self.sizes) < 1:
            raise ValueError(
                "Expected sizes of at least 1 (leave out the devices that "
                f"hold nothing). Received sizes={self.sizes}."
            )
        if self.axis >= 0:
            raise ValueError(
                "Expected a negative axis, which fits kernels and biases "
                f"alike. Received axis={self.axis}."
            )

    @property
    def total(self) -> int:
        """The length of the axis."""
        return self.blocks * sum(self.sizes)

    def fits(self, shape: tf.TensorShape) -> bool:
        """Whether a value of this (merged) shape can be cut this way."""
        return (
            shape.rank is not None
            and shape.rank >= -self.axis
            and shape[self.axis] == self.total
        )

    def shard_shape(self, shape: tf.TensorShape, index: int) -> tf.TensorShape:
        """The shape of shard `index` of a value of this merged shape."""
        dims = shape.as_list()
        dims[self.axis] = self.blocks * self.sizes[index]
        return tf.TensorShape(dims)


@dataclasses.dataclass(frozen=True)
class SampleLayout(_Shards):
    """The layout of a batch: which device holds how many of its samples.

    Example:
    ```python
    layout = SampleLayout(
        owner="/job:chief/replica:0/task:0/device:CPU:0",
        devices=(
            "/job:chief/replica:0/task:0/device:CPU:0",
            "/job:worker/replica:0/task:0/device:GPU:0",
        ),
        shares=(1, 3),
    )
    layout.bounds(64)  # [0, 16, 64]
    ```

    Batches need not be of one size: each is cut in proportion, and a device
    may get none of a small one. If the shares sum to the batch's samples, they
    are the numbers of samples.

    Args:
        owner: The device that holds whatever is not cut.
        devices: One device name per shard.
        shares: Shares of the samples, one per device: whole numbers, each at
            least 1.
        wire: The dtype in which shards travel; None for their own.
    """

    owner: str
    devices: tuple[str, ...]
    shares: tuple[int, ...]
    wire: str | None = None

    # The sample axis of feature maps is the first.
    axis = 0
    blocks = 1

    def __post_init__(self) -> None:
        if len(self.devices) != len(self.shares) or not self.shares:
            raise ValueError(
                "Expected one share per device, and at least one. Received "
                f"{len(self.devices)} devices and {len(self.shares)} shares."
            )
        if min(self.shares) < 1:
            raise ValueError(
                "Expected shares of at least 1 (leave out the devices that "
                f"get no samples). Received shares={self.shares}."
            )

    def bounds(self, batch: Any) -> list[Any]:
        """Indices at which one device's samples end and the next's begin.

        Args:
            batch: Number of samples: an int, or a scalar tensor of integers.

        Returns:
            Bounds from 0 to `batch`, one more than there are devices.
        """
        total = sum(self.shares)
        ends = itertools.accumulate(self.shares, initial=0)
        # Rounded to the nearest.
        return [(2 * batch * end + total) // (2 * total) for end in ends]


AnyLayout: TypeAlias = Layout | SampleLayout


def _but_wire(layout: Any) -> Any:
    return dataclasses.replace(layout, wire=None)
