"""The mean of vectors that are on several devices, on each of them.

Each device adds one piece of all vectors and sends it to all others
(reduce-scatter, then all-gather): all links are used both ways at once, and of
a vector of `n` bytes each device sends `2 n (P - 1) / P`, whatever `P` is.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_convpar.placement import BLOCK
from tf_convpar.placement import consecutive_slices
from tf_convpar.placement import exchange_messages
from tf_convpar.placement import ordered_sum
from tf_convpar.placement import piece_sizes
from tf_convpar.replicas.wire import Left
from tf_convpar.replicas.wire import Wire


class AllReduce:
    """Weighted means over devices, in a wire's form.

    ```python
    reduce = AllReduce(devices, values=len(vector), wire=wire_of("int8"))
    messages = [reduce.cut(v) for v in vectors]  # each where its vector is
    means = reduce(messages, tf.constant([0.75, 0.25]), residuals)
    ```

    Args:
        devices: Names of the devices.
        values: Length of a vector, a multiple of `BLOCK`.
        wire: How pieces travel.

    Attributes:
        sizes: Values of the piece that each device adds.
    """

    def __init__(self, devices: Sequence[str], values: int, wire: Wire) -> None:
        self.devices = list(devices)
        self.wire = wire
        self.sizes = piece_sizes(values, len(self.devices), BLOCK)

    def cut(
        self, vector: tf.Tensor, left: Sequence[Left] | None = None
    ) -> list[tf.Tensor]:
        """A device's messages: a piece for each of all devices.

        Args:
            vector: Its vector.
            left: For each piece what rounding leaves, as `Wire.encode` takes
                it.
        """
        pieces = consecutive_slices(vector, self.sizes)
        lefts: Sequence[Left | None] = left or [None] * len(pieces)
        return [
            self.wire.encode(piece, of)
            for piece, of in zip(pieces, lefts, strict=True)
        ]

    def __call__(
        self,
        messages: Sequence[Sequence[tf.Tensor]],
        weights: tf.Tensor,
        residuals: Sequence[tf.Variable],
    ) -> list[tf.Tensor]:
        """The mean, on each device; call it in a graph.

        Args:
            messages: Those of each device, as `cut` makes them.
            weights: What each device's vector counts, in all 1.
            residuals: For each device what rounding has left of its piece,
                which is added to it, and is what rounding leaves then. An
                exact wire needs none.
        """
        pieces = []
        for j, device in enumerate(self.devices):
            parts = [of[j] for of in messages]
            with tf.device(device):
                counts = tf.unstack(tf.identity(weights), len(parts))
                total = ordered_sum(
                    *(
                        count * self.wire.decode(part, self.sizes[j])
                        for count, part in zip(counts, parts, strict=True)
                    )
                )
                left = None if self.wire.is_exact else residuals[j]
                pieces.append(self.wire.encode(total, left))
        means = []
        for device in self.devices:
            with tf.device(device):
                means.append(
                    tf.concat(
                        [
                            self.wire.decode(message, size)
                            for message, size in zip(
                                pieces, self.sizes, strict=True
                            )
                        ],
                        axis=0,
                    )
                )
        return means

    def nbytes(self, device: int) -> int:
        """Bytes that a device sends for one mean."""
        pieces = list(map(self.wire.nbytes, self.sizes))
        return sum(
            nbytes
            for leg in exchange_messages(self.devices, self.devices, pieces)
            for (source, _), nbytes in leg.items()
            if source == self.devices[device]
        )
