"""Recomputes a convolution with each feature map scaled.

In inference a normalization is a factor and a summand of each feature map. The
factor may as well scale the filter, and the summand be a part of the bias: then
no pass over the feature maps is left. A layer leaves a note on its result of
how to recompute it, for a normalization that finds it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar import ops
from tf_convpar._compat.keras import training_of_call
from tf_convpar.algorithms import ASSUMED_BATCH
from tf_convpar.ops import Epilogue

# Where a tensor has its note, and where an image with zeros around it has one.
_NOTE, _UNPADDED = "_convpar_scaled", "_convpar_unpadded"


@dataclasses.dataclass(frozen=True)
class Fusable:
    """Recomputes a result with the following op fused into it.

    ```python
    y = fusable.run(Epilogue(activation="relu"))
    ```

    Attributes:
        run: Takes an `Epilogue`, of which it computes what the other attributes
            say. As the note of `note_of` it computes a factor and a bias too.
            Of shards it takes what is added in shards, and returns shards.
        activations: Names of the activations that it computes.
        adds: Whether it adds other feature maps.
    """

    run: Callable[[Epilogue], Any]
    activations: Collection[str] = tuple(ops.ACTIVATIONS)
    adds: bool = False


@dataclasses.dataclass(frozen=True)
class Source:
    """Inputs and epilogue needed to recompute a layer with its channels scaled.

    Attributes:
        inputs: The inputs, for all stages of the layer.
        zeros: Zeros above, below, left and right of them, which the last stage
            adds in its pass.
        joined: How the last stage may make the inputs in its pass.
        activations: Names of the activations that the last stage computes in
            its pass. It takes an epilogue if there are any.
        in_one_pass: Whether that stage takes factors, and feature maps to add.
            Elsewhere factors scale the kernel.
    """

    inputs: tf.Tensor
    zeros: Sequence[int] = (0, 0, 0, 0)
    joined: ops.JoinedImages | None = None
    activations: Collection[str] = ()
    in_one_pass: bool = False

    def epilogue(self, activation: str) -> Epilogue | None:
        """The epilogue of the last stage at first; None if that takes none."""
        if not self.activations:
            return None
        return Epilogue(activation=activation, joined=self.joined)


def is_inference() -> bool:
    """Whether Keras runs a layer in inference, not in a training step.

    Kernels are then likely to be the same next time.
    """
    return training_of_call() is False


def leave_note(
    maps: tf.Tensor,
    run: Callable[..., tf.Tensor],
    source: Source,
    kernels: Sequence[tf.Tensor],
    bias: Sequence[tf.Tensor],
    shape: Sequence[int],
) -> None:
    """Notes on feature maps how to recompute them scaled, where it may pay.

    It does in a graph, in which unused results are never computed. The last
    kernel must have fewer numbers than the feature maps if it is scaled.

    Args:
        maps: The feature maps, channels last.
        run: The function that has computed them, of the inputs, the kernels
            with the bias, and maybe an epilogue and zeros.
        source: Inputs by which the layer is recomputed.
        kernels: Its kernels; the last one is scaled.
        bias: Its bias, if it has one.
        shape: The shape in which factors scale the last kernel.
    """
    batch = maps.shape[0] or ASSUMED_BATCH
    numbers = batch * math.prod(n or 1 for n in maps.shape[1:])
    *first_kernels, kernel = kernels
    large = not source.in_one_pass and numbers < math.prod(kernel.shape)
    if tf.executing_eagerly() or large:
        return

    def scaled(epilogue: Epilogue) -> tf.Tensor:
        last, factor, summand = kernel, epilogue.factor, epilogue.bias
        if bias:
            summand += bias[0] * factor
        if not source.in_one_pass:
            last, factor = kernel * tf.reshape(factor, shape), None
        # The bias goes with the weights.
        epilogue = dataclasses.replace(
            epilogue, factor=factor, bias=None, joined=source.joined
        )
        return run(
            source.inputs,
            [*first_kernels, last, summand],
            epilogue if source.activations else None,
            source.zeros,
        )

    note = Fusable(scaled, source.activations, adds=source.in_one_pass)
    setattr(maps, _NOTE, note)


def completed(epilogue: Epilogue, bias: Sequence[tf.Tensor]) -> Epilogue:
    """Adds to an epilogue the layer's bias, and whether this is inference.

    Args:
        epilogue: The rest of the epilogue.
        bias: The layer's bias, if it has one.
    """
    return dataclasses.replace(
        epilogue, bias=bias[0] if bias else None, remember=is_inference()
    )


def leave_unpadded(
    padded: tf.Tensor, image: tf.Tensor, zeros: Sequence[int]
) -> None:
    """Notes on a padded image the image itself and its zeros.

    Args:
        padded: The image with its zeros.
        image: The image.
        zeros: Zeros above, below, left and right of it.
    """
    if not tf.executing_eagerly():
        setattr(padded, _UNPADDED, (image, tuple(zeros)))


def unpadded(x: tf.Tensor) -> tuple[tf.Tensor, tuple[int, ...]]:
    """The image in a padded image, and the zeros around it, by its note."""
    note: tuple[tf.Tensor, tuple[int, ...]] = getattr(
        x, _UNPADDED, (x, (0, 0, 0, 0))
    )
    return note


def has_note(x: Any) -> bool:
    """Whether a tensor has a note of how to recompute it, or of zeros."""
    return hasattr(x, _NOTE) or hasattr(x, _UNPADDED)


def note_of(maps: Any) -> Fusable | None:
    """How to recompute feature maps with an epilogue, if a note says so."""
    note: Fusable | None = getattr(maps, _NOTE, None)
    return note


def with_epilogue(fusable: Fusable, **attributes: Any) -> Fusable:
    """A `Fusable` with an epilogue that later layers add to.

    Args:
        fusable: Recomputes the result.
        **attributes: Attributes of the `Epilogue`.
    """

    def run(epilogue: Epilogue) -> Any:
        return fusable.run(dataclasses.replace(epilogue, **attributes))

    return dataclasses.replace(fusable, run=run)
