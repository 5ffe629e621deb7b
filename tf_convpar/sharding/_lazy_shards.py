"""Sharded feature maps that are computed with the layer after them.

A normalization on shards returns the terms of its result. A sum or an
activation of it is computed of these terms, in one pass on each device. For
any other layer the maps themselves are computed, on first use. Other layers
return their result with a way to compute it together with an activation.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar import ops
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import on_device
from tf_convpar.sharding._fusable import activation_of
from tf_convpar.sharding._normalized_sums import MOST_TERMS
from tf_convpar.sharding._normalized_sums import Term
from tf_convpar.sharding._normalized_sums import combined
from tf_convpar.sharding._normalized_sums import regrouped


class LazySum(ShardedTensor):
    """A sum of feature maps, of which some are normalized, computed on use.

    Args:
        terms: For each device the terms there, one or two.
        like: A sharded tensor of its shape, dtype and layout.
    """

    def __init__(
        self, terms: Sequence[Sequence[Term]], like: ShardedTensor
    ) -> None:
        super().__init__((), like.layout, like.counts)
        self.terms = terms
        self._like = like

    @property
    def shards(self) -> tuple[tf.Tensor, ...]:
        """The maps on each device."""
        tensors = [t.tensors() for terms in self.terms for t in terms]
        maps: ShardedTensor = self.once(
            lambda: activated(self, "linear"), "shards", tensors
        )
        return maps.shards

    @property
    def dtype(self) -> tf.DType:
        """The dtype of every shard."""
        return self._like.dtype

    @property
    def shape(self) -> tf.TensorShape:
        """The merged shape."""
        return self._like.shape


class WithActivation(ShardedTensor):
    """Shards whose op also computes an activation that follows.

    In a graph the shards themselves are computed only if they are used.

    Args:
        shards: The shards.
        activated: Computes them with an activation, by its name.
        activations: Names of the activations that the op knows.
    """

    def __init__(
        self,
        shards: ShardedTensor,
        activated: Callable[[str], ShardedTensor],
        activations: Collection[str],
    ) -> None:
        super().__init__(shards.shards, shards.layout, shards.counts)
        self.activated = activated
        self.activations = activations


def normalized_shards(
    x: ShardedTensor, terms: Sequence[Term], axis: int, dtype: str
) -> ShardedTensor:
    """The result of a batch normalization, computed on use if that is possible.

    Args:
        x: The input of the normalization.
        terms: For each device its maps, with their statistics.
        axis: The channel axis.
        dtype: The dtype of the result.
    """
    maps = x.with_shards([term.maps for term in terms])
    if axis == maps.ndim - 1 and maps.dtype == dtype:
        return LazySum([[term] for term in terms], maps)
    return x.with_shards(
        [
            activated_on(device, [term], "linear", axis, dtype)
            for device, term in zip(x.layout.devices, terms, strict=True)
        ]
    )


def in_one_pass(layer: Any, inputs: Sequence[Any]) -> ShardedTensor | None:
    """A sum of a `LazySum` or an activation, in the pass of the layer before.

    Args:
        layer: A layer, or an operation.
        inputs: Its inputs.

    Returns:
        Its result, or None where the layer computes that otherwise.
    """
    lazy = any(isinstance(x, LazySum) for x in inputs)
    if lazy and type(layer) is keras.layers.Add:
        return _added(inputs)
    if type(layer) not in (keras.layers.ReLU, keras.layers.Activation):
        return None
    name = activation_of(layer)
    (x,) = inputs
    if name is None:
        return None
    if isinstance(x, WithActivation) and name in x.activations:
        return x.activated(name)
    # Of a sum, what other activations were given would have to be kept.
    if lazy and (len(x.terms[0]) == 1 or name == "relu"):
        return activated(x, name)
    return None


def _added(inputs: Sequence[Any]) -> LazySum | None:
    first, *_ = inputs
    alike = all(
        isinstance(x, ShardedTensor)
        and x.layout.matches(first.layout)
        and (x.shape, x.dtype) == (first.shape, first.dtype)
        for x in inputs
    )
    if not alike:
        return None
    terms = [
        [term for part in parts for term in part]
        for parts in zip(*map(_terms_of, inputs), strict=True)
    ]
    return LazySum(terms, first) if len(terms[0]) <= MOST_TERMS else None


def _terms_of(x: ShardedTensor) -> Sequence[Sequence[Term]]:
    """For each device, the terms of which shards are the sum."""
    if isinstance(x, LazySum):
        return x.terms
    return [[Term(shard)] for shard in x.shards]


def activated(x: LazySum, activation: str) -> ShardedTensor:
    """An activation of a sum, on each device in one pass.

    Args:
        x: The sum.
        activation: As for `combined`.
    """
    return x.with_shards(
        [
            activated_on(device, terms, activation)
            for device, terms in zip(x.layout.devices, x.terms, strict=True)
        ]
    )


def activated_on(
    device: str,
    terms: Sequence[Term],
    activation: str,
    axis: int = -1,
    dtype: Any = None,
) -> tf.Tensor:
    """An activation of a sum on one device.

    Args:
        device: Name of the device.
        terms: The maps that are added there.
        activation: As for `combined`.
        axis: The channel axis.
        dtype: Of the result; None for that of the terms.
    """
    native = ops.native_on("ScaleChannels", device)

    def run(*tensors: tf.Tensor) -> tf.Tensor:
        y = combined(regrouped(terms, tensors), activation, axis, native)
        return tf.cast(y, dtype or y.dtype)

    operands = [tensor for term in terms for tensor in term.tensors()]
    result: tf.Tensor = on_device(run, device)(*operands)
    return result
