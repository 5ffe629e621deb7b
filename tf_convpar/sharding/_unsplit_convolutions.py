"""Convolutions that stay whole on the chief, with the reasons."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import keras

from tf_convpar._compat.keras import layers_of
from tf_convpar.layers import ConvParallel
from tf_convpar.layers import Split
from tf_convpar.plans import CHIEF
from tf_convpar.sharding import _conversion
from tf_convpar.strategy.strategy import ConvParallelStrategy

_RECURRENT = (
    *(keras.layers.ConvLSTM1D, keras.layers.ConvLSTM2D),
    keras.layers.ConvLSTM3D,
)
_KINDS = (*_conversion.KINDS, *_RECURRENT)
_LEFT_BY_PLAN = "the plan leaves it to the chief"
# Folders of packages that were installed, and are nobody's own program.
_INSTALLED = {"site-packages", "dist-packages"}


class Unsplit(NamedTuple):
    """A convolution that is not spread.

    Attributes:
        layer: The layer.
        reason: Why it is not, and what to do.
        held_by: The layers and models that it is in, the outermost first,
            below the model that was looked at.
        can_be_spread: Whether it could be spread.
    """

    layer: Any
    reason: str
    held_by: tuple[Any, ...]
    can_be_spread: bool

    @property
    def is_planned(self) -> bool:
        """Whether it is whole because a plan says so."""
        return self.reason == _LEFT_BY_PLAN


def why_unsplit(layer: Any, held_by: Sequence[Any]) -> str | None:
    """Why a convolution cannot be spread; None if it can.

    Args:
        layer: A convolution of any kind.
        held_by: The layers and models that it is in, the outermost first.
    """
    if isinstance(layer, _RECURRENT):
        return (
            "convolves step by step: its kernels would travel in each of them"
        )
    if not (_conversion.may_be_split(layer) or isinstance(layer, ConvParallel)):
        return _why_class_unsplit(type(layer))
    if getattr(layer, "quantization_mode", None) is not None:
        return "is quantized: parallelize first"
    for holder in held_by:
        if _is_of_keras(holder):
            cure = "call it by itself"
            if isinstance(holder, keras.layers.TimeDistributed):
                cure = "write the loop over its inputs out, or reshape them"
            name = type(holder).__name__
            return f"is called by {name} in a way of its own: {cure}"
    return None


def unsplit_convolutions(model: Any) -> Iterator[Unsplit]:
    """The convolutions of a model that are not spread."""
    seen: set[int] = set()

    def walk(layer: Any, held_by: tuple[Any, ...]) -> Iterator[Unsplit]:
        if id(layer) in seen:
            return
        seen.add(id(layer))
        spread = isinstance(layer, ConvParallel) and layer.is_spread
        if isinstance(layer, _KINDS) and not spread:
            never = why_unsplit(layer, held_by)
            reason = never or _why_not_spread(layer, model)
            yield Unsplit(layer, reason, held_by[1:], never is None)
        for inner in layers_of(layer, recursive=False):
            yield from walk(inner, (*held_by, layer))

    yield from walk(model, ())


def _why_not_spread(layer: Any, model: Any) -> str:
    """Why a convolution that can be spread is not."""
    if not isinstance(layer, ConvParallel):
        return f"is a {type(layer).__name__} of Keras: parallelize the model"
    if layer.split == CHIEF:
        return _LEFT_BY_PLAN
    strategy = getattr(model, "distribute_strategy", None)
    if not isinstance(strategy, ConvParallelStrategy):
        return "was made in the scope of no ConvParallelStrategy"
    count = len(strategy.devices)
    if count < 2:
        return "has one device only"
    if not layer.built:
        return "has no input shape yet, and is split when it has"
    split_by, shares = layer.split, layer.shards
    if split_by is None and shares is None:
        split = Split.of(strategy.entry(layer.name))
        if split.by == CHIEF:
            return _LEFT_BY_PLAN
        split_by, shares = split.by, split.shards or strategy.shares
    to_share = layer._channels_to_share(layer.get_build_config()["input_shape"])
    if split_by != "samples" and to_share < count:
        what = "filter" if hasattr(layer, "filters") else "channel"
        cure = "`split='samples'`"
        if _conversion.may_be_split(layer):
            cure = f"`plan={{'{layer.name}': 'samples'}}`"
        return (
            f"has {to_share} {what}{'s' * (to_share != 1)} for {count} "
            f"devices: {cure} splits its samples"
        )
    if shares is None:
        return "was built outside of the strategy's scope: parallelize within"
    return f"has all of its work on the chief, by the shares {tuple(shares)}"


def _why_class_unsplit(kind: type) -> str:
    """Why a layer of a class that is not Keras' own is not spread."""
    base = next(filter(_conversion.has_parallel_form, kind.__mro__))
    before = kind.__mro__[: kind.__mro__.index(base)]
    own_methods = {name for one in before for name in vars(one)}
    package = kind.__module__.partition(".")[0]
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    whose = "a class of your own"
    if _INSTALLED & set(pathlib.Path(file).parts):
        whose = f"a class of {package}"
        cure = (
            f"put a {base.__name__} of Keras in its place where that does the "
            "same (`clone_function=` of keras.models.clone_model)"
        )
    elif "convolution_op" in own_methods:
        # A parallel layer has none.
        cure = (
            f"let it do its part before and after a {base.__name__} of Keras "
            "that it holds"
        )
    else:
        twin = f"convpar.{_conversion.public_name(base)}"
        cure = f"derive it from {twin} instead of keras.layers.{base.__name__}"
        if own_methods & {"call", "__call__"}:
            cure += ", and leave the convolution to `super().call`"
    return f"{kind.__name__} is {whose}, and may do anything: {cure}"


def _is_of_keras(layer: Any) -> bool:
    """Whether a holder of layers is a layer of Keras itself, not a model."""
    kind = type(layer)
    return getattr(keras.layers, kind.__name__, None) is kind
