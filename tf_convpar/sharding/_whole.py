"""Which convolutions stay whole on the chief, and why."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras

from tf_convpar._compat.keras import layers_of
from tf_convpar.layers import ConvParallel
from tf_convpar.sharding import _twins

_RECURRENT = (
    *(keras.layers.ConvLSTM1D, keras.layers.ConvLSTM2D),
    keras.layers.ConvLSTM3D,
)
# Of those that could be spread.
LEFT = "the plan leaves it to the chief"
_KINDS = (*_twins.KINDS, *_RECURRENT)


def why_whole(layer: Any, held_by: Sequence[Any]) -> str | None:
    """Why a convolution cannot be spread; None if it can.

    Args:
        layer: A convolution of any kind.
        held_by: The layers and models that it is in, the outermost first.
    """
    if isinstance(layer, _RECURRENT):
        return (
            "convolves step by step: its kernels would travel in each of them"
        )
    if not _twins.is_convolution(layer):
        kind = type(layer).__name__
        own = f"{kind} is a class of your own, and may do anything"
        for base in filter(_twins.has_twin, type(layer).__mro__):
            twin = _twins.public_name(base)
            return (
                f"{own}: derive it from convpar.{twin} instead of "
                f"keras.layers.{base.__name__}"
            )
        return own
    if getattr(layer, "quantization_mode", None) is not None:
        return "is quantized: parallelize first"
    for holder in held_by:
        if _is_kerass_own(holder):
            return (
                f"is called by {type(holder).__name__} in a way of its own: "
                "write the loop over its inputs out, or reshape them"
            )
    return None


def whole(model: Any) -> Iterator[tuple[Any, str, tuple[Any, ...]]]:
    """The convolutions of a model that are not spread.

    Yields:
        A layer; why it is not; and the layers and models that it is in, below
        `model`, the outermost first.
    """
    seen: set[int] = set()

    def walk(
        layer: Any, held_by: tuple[Any, ...]
    ) -> Iterator[tuple[Any, str, tuple[Any, ...]]]:
        if id(layer) in seen:
            return
        seen.add(id(layer))
        spread = isinstance(layer, ConvParallel) and layer.is_spread
        if isinstance(layer, _KINDS) and not spread:
            reason = why_whole(layer, held_by)
            yield layer, reason or LEFT, held_by[1:]
        for inner in layers_of(layer, recursive=False):
            yield from walk(inner, (*held_by, layer))

    yield from walk(model, ())


def _is_kerass_own(layer: Any) -> bool:
    """Whether a holder of layers is a layer of Keras itself, not a model."""
    kind = type(layer)
    return getattr(keras.layers, kind.__name__, None) is kind
