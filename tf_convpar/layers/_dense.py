"""`DenseParallel`: a dense layer whose units are spread over devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar.layers._base import ConvParallel
from tf_convpar.layers._stage import Stage


class DenseStage(Stage):
    """The units of a dense layer, which take all features."""

    def compute(
        self,
        x: tf.Tensor,
        kernel: tf.Tensor,
        bias: Sequence[tf.Tensor],
        *_: Any,
    ) -> tf.Tensor:
        """Computes them as Keras does."""
        y = tf.matmul(x, kernel)
        return tf.nn.bias_add(y, *bias) if bias else y


@keras.saving.register_keras_serializable("tf_convpar", "DenseParallel")
class Dense(ConvParallel, keras.layers.Dense):
    """`keras.layers.Dense` with its units spread over devices.

    ```python
    with convpar.ConvParallelStrategy().scope():
        layer = convpar.DenseParallel(4096, activation="relu", shards=(3, 1))
    ```

    Each device has the columns of the kernel of its own units, and gets all
    features. Kernels never travel. `parallelize` makes such layers of dense
    layers with a million weights and more, where they are split by filters.

    It takes every argument of `keras.layers.Dense`, then `shards`,
    `wire_dtype`, `algorithm` and `split`, which are those of `ConvParallel2D`,
    with units in the place of kernels. `algorithm` changes nothing.

    Input shape: `(batch, features)`.

    Raises:
        ValueError: `Dense` refuses an argument; `shards` are not valid; or
            `wire_dtype`, `algorithm` or `split` is unknown.
    """

    # As of feature maps without pixels.
    data_format = "channels_last"
    rank = 0

    @property
    def filters(self) -> int:
        """The number of units."""
        return int(self.units)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Computes each shard's units on its device."""
        return super().call(inputs)

    def shares_units(self, input_shape: Any) -> bool:
        """Whether devices will share the units; settles the layouts."""
        self._lay_out(input_shape)
        return self._samples is None and self._layout is not None

    def stages(self) -> list[Stage]:
        """The product of features and kernel."""
        return [DenseStage(self)]
