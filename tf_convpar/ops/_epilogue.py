"""Epilogues of convolutions: bias, activation and the like, in one pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from ._activations import ACTIVATIONS
from ._joined_images import JoinedImages


@dataclasses.dataclass(frozen=True)
class Epilogue:
    """Operations on a convolution's result before it is written.

    ```python
    y = convolve(x, kernel, epilogue=Epilogue(bias=bias, activation="relu"))
    ```

    From left to right as here, where `*` convolves:

        y = activation(factor (x * kernel) + bias + added)

    Defaults do nothing. The last two attributes are about the convolution
    itself: its images, and what it keeps of its kernel.

    Attributes:
        factor: One factor for each filter, `(filters,)`.
        bias: One summand for each filter, `(filters,)`.
        added: Feature maps, of the shape of the result.
        activation: `"linear"`, `"relu"`, `"relu6"`, `"silu"` or `"gelu"`.
        joined: How the images `x` were made, if that is a part of the pass,
            which then does not read `x`. Only for windows of one pixel and
            strides of 1.
        remember: Whether the kernel is likely to be the same at the next call,
            as in inference: tensors made of it alone are then kept, and made
            anew when it has changed.
    """

    factor: tf.Tensor | None = None
    bias: tf.Tensor | None = None
    added: tf.Tensor | None = None
    activation: str = "linear"
    joined: JoinedImages | None = None
    remember: bool = False

    @property
    def is_of_training(self) -> bool:
        """Whether a bias and `relu` are all that follows."""
        other_steps = self.factor is not None or self.added is not None
        return not other_steps and self.activation in ("linear", "relu")

    def applied(self, maps: tf.Tensor, channels_last: bool = True) -> tf.Tensor:
        """Applies the epilogue, by TensorFlow's ops.

        Args:
            maps: The bare result of the convolution.
            channels_last: Where its channels are: last, or after the batch.
        """
        along = [-1] + [1] * (maps.shape.rank - 2)
        if self.factor is not None:
            factor = self.factor
            maps *= factor if channels_last else tf.reshape(factor, along)
        if self.bias is not None and channels_last:
            # TensorFlow fuses this op with the convolution.
            maps = tf.nn.bias_add(maps, self.bias)
        elif self.bias is not None:
            maps += tf.reshape(self.bias, along)
        if self.added is not None:
            maps += self.added
        if self.activation == "linear":
            return maps
        return ACTIVATIONS[self.activation].value(maps)

    def tensors(self) -> list[tf.Tensor]:
        """All its tensors, which have gradients."""
        return [x for x in tf.nest.flatten(self._values()) if tf.is_tensor(x)]

    def with_tensors(self, tensors: Sequence[tf.Tensor]) -> Epilogue:
        """This epilogue with other tensors, in the order of `tensors()`."""
        remaining = iter(tensors)
        values = tf.nest.map_structure(
            lambda x: next(remaining) if tf.is_tensor(x) else x, self._values()
        )
        return Epilogue(*values)

    def cast(self, dtype: tf.DType) -> Epilogue:
        """This epilogue with tensors of another dtype."""
        return self.with_tensors([tf.cast(x, dtype) for x in self.tensors()])

    def _values(self) -> list[object]:
        return [*vars(self).values()]


NOTHING = Epilogue()
