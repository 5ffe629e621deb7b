"""How one variable is cut: how many channels each device holds."""

from __future__ import annotations

import dataclasses

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which device holds how much of a variable's channel axis.

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
        blocks: Where feature maps have been flattened, the axis holds the
            channels of one pixel after those of another: so many pixels, and
            the channels of each are cut. Otherwise 1.
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

    def matches(self, other: Layout) -> bool:
        """Whether shards of both lie side by side, however they travel."""
        return dataclasses.replace(self, wire=None) == dataclasses.replace(
            other, wire=None
        )

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
