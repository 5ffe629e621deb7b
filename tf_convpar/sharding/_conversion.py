"""Parallel layers and the Keras layers they replace."""

from __future__ import annotations

from typing import Any

import keras

from tf_convpar import layers
from tf_convpar.copying import Copies
from tf_convpar.layers import ConvParallel
from tf_convpar.sharding.rules import is_large

_PARALLEL_FORMS: dict[type, Any] = {
    keras.layers.Conv1D: layers.ConvParallel1D,
    keras.layers.Conv2D: layers.ConvParallel2D,
    keras.layers.Conv3D: layers.ConvParallel3D,
    keras.layers.Conv1DTranspose: layers.ConvParallel1DTranspose,
    keras.layers.Conv2DTranspose: layers.ConvParallel2DTranspose,
    keras.layers.Conv3DTranspose: layers.ConvParallel3DTranspose,
    keras.layers.DepthwiseConv1D: layers.DepthwiseConvParallel1D,
    keras.layers.DepthwiseConv2D: layers.DepthwiseConvParallel2D,
    keras.layers.SeparableConv1D: layers.SeparableConvParallel1D,
    keras.layers.SeparableConv2D: layers.SeparableConvParallel2D,
}
# Classes of Keras' convolutions, each of which has a parallel form.
KINDS = tuple(_PARALLEL_FORMS)
_PARALLEL_FORMS[keras.layers.Dense] = layers.DenseParallel
_PLAIN_FORMS: dict[Any, Any] = {
    parallel: plain for plain, parallel in _PARALLEL_FORMS.items()
}
PARALLEL_ARGUMENTS = ("shards", "wire_dtype", "algorithm", "split")
_LAYOUT_ATTRIBUTES = (
    *("_layout", "_samples", "_depthwise_layout", "_in_region"),
    *("_recomputable", "_asked_jit"),
)


def may_be_split(layer: Any) -> bool:
    """Whether a layer is a convolution, or a dense layer worth splitting.

    So is any that is parallel. Layers of classes of the user's are not.
    """
    kind = type(layer)
    return kind in KINDS or kind in _PLAIN_FORMS or is_large(layer)


def has_parallel_form(kind: type) -> bool:
    """Whether a class of Keras has a parallel form."""
    return kind in _PARALLEL_FORMS


def public_name(kind: type) -> str:
    """The public name of the parallel form of a class of Keras."""
    return next(
        n for n in layers.__all__ if getattr(layers, n) is _PARALLEL_FORMS[kind]
    )


def parallel(layer: Any, copies: Copies, **changes: Any) -> ConvParallel:
    """The copy of a layer as a parallel one, not placed yet.

    Args:
        layer: A layer that has a parallel form, or is one.
        copies: The `Copies` that make the copy.
        **changes: New values of some of `PARALLEL_ARGUMENTS`; others stay.
    """
    arguments = {
        name: getattr(layer, name, None) for name in PARALLEL_ARGUMENTS
    }
    kind = _PARALLEL_FORMS.get(type(layer), type(layer))
    copy: ConvParallel = copies.as_kind(layer, kind)
    copy.spread(**arguments | changes)
    return copy


def planned(layer: Any, **changes: Any) -> ConvParallel:
    """A layer as the parallel one that it would be, for planning.

    It shares the weights of the layer, and must not be called.
    """
    kind = _PARALLEL_FORMS.get(type(layer), type(layer))
    twin: Any = keras.layers.Layer.__new__(kind)
    twin.__dict__.update(vars(layer))
    arguments = {
        name: getattr(layer, name, None) for name in PARALLEL_ARGUMENTS
    }
    twin.spread(**arguments | changes)
    layer_to_plan: ConvParallel = twin
    return layer_to_plan


def plain(layer: Any, copies: Copies) -> Any:
    """The copy of a parallel layer as a layer of plain Keras.

    A class of the user's, made of a parallel one, stays what it is, on one
    device.
    """
    kind = _PLAIN_FORMS.get(type(layer))
    if kind is None:
        own = copies.as_kind(layer, type(layer))
        for name in _LAYOUT_ATTRIBUTES:
            vars(own).pop(name, None)
        own.spread(split="chief")
        return own
    copy = copies.as_kind(layer, kind)
    for name in (*PARALLEL_ARGUMENTS, *_LAYOUT_ATTRIBUTES):
        vars(copy).pop(name, None)
    copy.supports_jit = True
    return copy
