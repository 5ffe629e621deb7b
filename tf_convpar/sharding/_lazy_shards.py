"""Sharded feature maps that are computed with the layer after them.

A normalization on shards returns the terms of its result. A sum or an
activation of it is computed of these terms, in one pass on each device. For
any other layer the maps themselves are computed, on first use. Other layers
return their result with a way to compute it together with what follows; in
inference a convolution computes the normalization after it, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar import ops
from tf_convpar.layers import Fusable
from tf_convpar.layers import note_of
from tf_convpar.layers import with_epilogue
from tf_convpar.ops import NOTHING
from tf_convpar.ops import Epilogue
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


class Recomputable(ShardedTensor):
    """Shards that may be computed together with the layers after them.

    In a graph the shards themselves are computed only if they are used.

    Args:
        shards: The shards.
        fusable: Computes them with what follows.
    """

    def __init__(self, shards: ShardedTensor, fusable: Fusable) -> None:
        super().__init__(shards.shards, shards.layout, shards.counts)
        self.fusable = fusable


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
        within = _within_convolution(maps, terms)
        if within is not None:
            return within
        return LazySum([[term] for term in terms], maps)
    return x.with_shards(
        [
            activated_on(device, [term], "linear", axis, dtype)
            for device, term in zip(x.layout.devices, terms, strict=True)
        ]
    )


def _within_convolution(
    maps: ShardedTensor, terms: Sequence[Term]
) -> Recomputable | None:
    """A normalization in inference, computed by the convolution before it.

    None if that has left no notes on its feature maps.
    """
    notes = [note_of(term.maps) for term in terms]
    fusables = []
    for device, term, note in zip(
        maps.layout.devices, terms, notes, strict=True
    ):
        learns = term.statistics is not None and term.statistics.learns
        if note is None or learns:
            return None
        with tf.device(device):
            factor, bias = term.affine(ops.native_on("Affine", device))
        fusables.append(with_epilogue(note, factor=factor, bias=bias))

    def run(epilogue: Epilogue) -> ShardedTensor:
        added = epilogue.added
        others = [None] * len(fusables) if added is None else added.shards
        shards = []
        for device, fusable, other in zip(
            maps.layout.devices, fusables, others, strict=True
        ):
            with tf.device(device):
                part = dataclasses.replace(epilogue, added=other)
                shards.append(fusable.run(part))
        return maps.with_shards(shards)

    activations = set.intersection(*(set(f.activations) for f in fusables))
    whole = Fusable(run, activations, all(f.adds for f in fusables))
    return Recomputable(run(NOTHING), whole)


def in_one_pass(layer: Any, inputs: Sequence[Any]) -> ShardedTensor | None:
    """A sum or an activation, in the pass of the layer before.

    Args:
        layer: A layer, or an operation.
        inputs: Its inputs.

    Returns:
        Its result, or None where the layer computes that otherwise.
    """
    lazy = any(isinstance(x, LazySum) for x in inputs)
    if type(layer) is keras.layers.Add:
        added = _added_to_convolution(inputs)
        return _added(inputs) if lazy and added is None else added
    if type(layer) not in (keras.layers.ReLU, keras.layers.Activation):
        return None
    name = activation_of(layer)
    (x,) = inputs
    if name is None:
        return None
    if isinstance(x, Recomputable) and name in x.fusable.activations:
        result: ShardedTensor = x.fusable.run(Epilogue(activation=name))
        return result
    # Of a sum, what other activations were given would have to be kept.
    if lazy and (len(x.terms[0]) == 1 or name == "relu"):
        return activated(x, name)
    return None


def _added_to_convolution(inputs: Sequence[Any]) -> Recomputable | None:
    """Recomputes one of two inputs with the other added to it."""
    if len(inputs) != 2 or not _are_alike(inputs):
        return None
    for x, other in ((inputs[1], inputs[0]), (inputs[0], inputs[1])):
        if isinstance(x, Recomputable) and x.fusable.adds:
            # Nothing more can be added.
            fusable = Fusable(with_epilogue(x.fusable, added=other).run)
            return Recomputable(fusable.run(NOTHING), fusable)
    return None


def _are_alike(inputs: Sequence[Any]) -> bool:
    """Whether all are shards of one shape, dtype and layout."""
    first, *_ = inputs
    return all(
        isinstance(x, ShardedTensor)
        and x.layout.matches(first.layout)
        and (x.shape, x.dtype) == (first.shape, first.dtype)
        for x in inputs
    )


def _added(inputs: Sequence[Any]) -> LazySum | None:
    first, *_ = inputs
    if not _are_alike(inputs):
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
