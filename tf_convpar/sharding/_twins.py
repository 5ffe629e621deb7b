"""Parallel layers and the Keras layers they replace."""

from __future__ import annotations

from typing import Any

import keras

from tf_convpar import layers
from tf_convpar.layers import ConvParallel
from tf_convpar.layers import validate_shards

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
_PLAIN: dict[Any, Any] = {parallel: plain for plain, parallel in _TWINS.items()}
OWN_ARGUMENTS = ("shards", "wire_dtype", "algorithm")


def is_convolution(layer: Any) -> bool:
    """Whether a layer has a parallel form, or is one."""
    return type(layer) in _TWINS or type(layer) in _PLAIN


def parallel(layer: Any, **own: Any) -> ConvParallel:
    """A new parallel layer like this one.

    Args:
        layer: A convolution, parallel or not.
        **own: `shards`, `wire_dtype`, `algorithm`; None for those it has.
    """
    # Here, for Keras would wrap the error in one about the layer's config.
    validate_shards(own.get("shards"), getattr(layer, "filters", None))
    config = layer.get_config()
    config.update({k: v for k, v in own.items() if v is not None})
    found: ConvParallel = _TWINS.get(type(layer), type(layer)).from_config(
        config
    )
    return found


def plain(layer: Any) -> Any:
    """A new layer of plain Keras like this one."""
    config = layer.get_config()
    kind: Any = type(layer)
    if kind not in _PLAIN:
        return kind.from_config(config)
    for name in OWN_ARGUMENTS:
        config.pop(name)
    return _PLAIN[kind].from_config(config)
