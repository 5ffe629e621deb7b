"""Parallel layers and the Keras layers they replace."""

from __future__ import annotations

from typing import Any

import keras

from tf_convpar import layers
from tf_convpar.copying import Copies
from tf_convpar.layers import ConvParallel

_TWINS: dict[type, Any] = {
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
# What has a parallel form.
KINDS = tuple(_TWINS)
_PLAIN: dict[Any, Any] = {parallel: plain for plain, parallel in _TWINS.items()}
OWN_ARGUMENTS = ("shards", "wire_dtype", "algorithm", "split")
_OF_LAYOUTS = (
    *("_layout", "_samples", "_depthwise_layout", "_in_region"),
    "_asked_jit",
)


def is_convolution(layer: Any) -> bool:
    """Whether a layer has a parallel form, or is one."""
    return type(layer) in _TWINS or type(layer) in _PLAIN


def has_twin(kind: type) -> bool:
    """Whether a class of Keras has a parallel form."""
    return kind in _TWINS


def public_name(kind: type) -> str:
    """The public name of the parallel form of a class of Keras."""
    return next(n for n in layers.__all__ if getattr(layers, n) is _TWINS[kind])


def parallel(layer: Any, copies: Copies, **own: Any) -> ConvParallel:
    """The copy of a convolution as a parallel layer, not placed yet.

    Args:
        layer: A convolution, parallel or not.
        copies: The `Copies` that make the copy.
        **own: New values of some of `OWN_ARGUMENTS`; the layer's others stay.
    """
    has = {name: getattr(layer, name, None) for name in OWN_ARGUMENTS}
    kind = _TWINS.get(type(layer), type(layer))
    found: ConvParallel = copies.as_kind(layer, kind)
    found.spread(**has | own)
    return found


def planned(layer: Any, **own: Any) -> ConvParallel:
    """A convolution as the parallel layer that it would be, for planning.

    It shares the weights of the layer, and must not be called.
    """
    kind = _TWINS.get(type(layer), type(layer))
    made: Any = keras.layers.Layer.__new__(kind)
    made.__dict__.update(vars(layer))
    has = {name: getattr(layer, name, None) for name in OWN_ARGUMENTS}
    made.spread(**has | own)
    found: ConvParallel = made
    return found


def plain(layer: Any, copies: Copies) -> Any:
    """The copy of a parallel layer as a layer of plain Keras."""
    found = copies.as_kind(layer, _PLAIN[type(layer)])
    for name in (*OWN_ARGUMENTS, *_OF_LAYOUTS):
        vars(found).pop(name, None)
    found.supports_jit = True
    return found
