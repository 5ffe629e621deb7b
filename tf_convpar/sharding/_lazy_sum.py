"""Sums of sharded feature maps that are made with what is computed of them.

A normalization on shards returns what it is made of. A sum or an activation
that takes it makes its own result of that, in one pass on each device. For
anything else the maps themselves are made, on first use.
"""

from __future__ import annotations

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
    """A sum of terms, of which some are normalized, made when it is needed.

    Args:
        terms: For each device the terms there, one or two.
        like: A sharded tensor of the shape, the dtype and the layout of it.
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
        given = [t.tensors() for terms in self.terms for t in terms]
        made: ShardedTensor = self.once(
            lambda: activated(self, "linear"), "shards", given
        )
        return made.shards

    @property
    def dtype(self) -> tf.DType:
        """The dtype of every shard."""
        return self._like.dtype

    @property
    def shape(self) -> tf.TensorShape:
        """The merged shape."""
        return self._like.shape


def normalized_shards(
    x: ShardedTensor, terms: Sequence[Term], axis: int, dtype: str
) -> ShardedTensor:
    """What a normalization by batch returns.

    Args:
        x: What it is called with.
        terms: For each device its maps, with their statistics.
        axis: The channel axis.
        dtype: The dtype of the result.
    """
    maps = x.with_shards([term.maps for term in terms])
    if axis == maps.ndim - 1 and maps.dtype == dtype:
        return LazySum([[term] for term in terms], maps)
    return x.with_shards(
        [
            made_on(device, [term], "linear", axis, dtype)
            for device, term in zip(x.layout.devices, terms, strict=True)
        ]
    )


def in_one_pass(layer: Any, inputs: Sequence[Any]) -> ShardedTensor | None:
    """A sum or an activation of what is made later, in one pass.

    Args:
        layer: A layer, or an operation.
        inputs: What it is called with.

    Returns:
        Its result, or None where something else computes that.
    """
    if not any(isinstance(x, LazySum) for x in inputs):
        return None
    if type(layer) is keras.layers.Add:
        return _added(inputs)
    if type(layer) not in (keras.layers.ReLU, keras.layers.Activation):
        return None
    name = activation_of(layer)
    (x,) = inputs
    # Of a sum, what other activations were given would have to be kept.
    if name is None or (len(x.terms[0]) > 1 and name != "relu"):
        return None
    return activated(x, name)


def _added(inputs: Sequence[Any]) -> LazySum | None:
    first, *others = inputs
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
            made_on(device, terms, activation)
            for device, terms in zip(x.layout.devices, x.terms, strict=True)
        ]
    )


def made_on(
    device: str,
    terms: Sequence[Term],
    activation: str,
    axis: int = -1,
    dtype: Any = None,
) -> tf.Tensor:
    """An activation of a sum on one device.

    Args:
        device: Name of the device.
        terms: What is added there.
        activation: As for `combined`.
        axis: The channel axis.
        dtype: Of the result; None for that of the terms.
    """
    native = ops.native_on("ScaleChannels", device)

    def run(*given: tf.Tensor) -> tf.Tensor:
        y = combined(regrouped(terms, given), activation, axis, native)
        return tf.cast(y, dtype or y.dtype)

    tensors = [tensor for term in terms for tensor in term.tensors()]
    found: tf.Tensor = on_device(run, device)(*tensors)
    return found
