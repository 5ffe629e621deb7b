"""The line that `parallelize` prints of a model, and its warnings."""

from __future__ import annotations

import os
import warnings
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat.keras import layers_of
from tf_convpar.layers import ConvParallel
from tf_convpar.machines import short
from tf_convpar.sharding import _unsplit_convolutions
from tf_convpar.strategy import strategy as strategy_lib
from tf_convpar.strategy.devices import default_devices
from tf_convpar.strategy.strategy import ConvParallelStrategy

# Layers that a line names; `summary()` has all.
_NAMED = 3


def line(model: Any, reason: str | None = None) -> str:
    """Says how much of a parallel model is spread, and what is not.

    ```python
    line(model)
    # "12 of 13 convolutions on 3 devices; not: 'x', inside 'block' ..."
    ```

    Args:
        model: What `parallelize` has made.
        reason: The planner's words on its plan, which go first. They name the
            layers that the plan left to the chief.
    """
    spread, unsplit = _spread_and_unsplit(model)
    never_split = [
        convolution for convolution in unsplit if not convolution.can_be_spread
    ]
    if reason is not None:
        # What could have been split is in the planner's line.
        return (
            f"{reason} Never split: {_listed(never_split)}."
            if never_split
            else reason
        )
    count = len(spread) + len(unsplit)
    if not count:
        return "no convolutions."
    devices = {device for layer in spread for device in _devices_of(layer)}
    if len(devices) < 2:
        text = f"{count} convolution{_s(count)} on one device, {_chief()}"
        for convolution in unsplit:
            if (
                convolution.can_be_spread
                and not convolution.is_planned
                and len(_devices()) > 1
            ):
                return (
                    f"{text}: '{convolution.layer.name}' {convolution.reason}."
                )
        return f"{text}."
    dense = sum(isinstance(layer, keras.layers.Dense) for layer in spread)
    spread_count, count = len(spread) - dense, count - dense
    text = f"{spread_count} of {count} convolutions"
    if dense:
        text += f" and {dense} dense layer{_s(dense)}"
    text += f" on {len(devices)} devices"
    return f"{text}; not: {_listed(unsplit)}." if unsplit else f"{text}."


def warn(model: Any, algorithm: str | None) -> None:
    """Warns where a model is not spread as its program seems to expect.

    Args:
        model: What `parallelize` has made.
        algorithm: The argument of `parallelize`: with one, a model on one
            device may be all that was wanted.
    """
    strategy = tf.distribute.get_strategy()
    inside = isinstance(strategy, ConvParallelStrategy)
    unused = strategy.unused() if inside else None
    if unused:
        warnings.warn(unused, stacklevel=3)
    spread, unsplit = _spread_and_unsplit(model)
    if spread or any(convolution.can_be_spread for convolution in unsplit):
        problem = None if inside else _no_strategy(spread, algorithm)
    else:
        problem = _no_convolution(unsplit)
    if problem:
        warnings.warn(f"{model.name}: {problem}", stacklevel=3)


def _no_convolution(unsplit: list[_unsplit_convolutions.Unsplit]) -> str:
    if not unsplit:
        return (
            "has no convolution that `parallelize` could find, so nothing is "
            "split. It finds layers of Keras that the model, or a layer in it, "
            "has as an attribute, and not convolutions by tf.nn."
        )
    first = unsplit[0]
    return (
        f"nothing is split, as none of {len(unsplit)} "
        f"convolution{_s(len(unsplit))} can be. '{first.layer.name}' "
        f"{first.reason}."
    )


def _no_strategy(spread: list[Any], algorithm: str | None) -> str | None:
    """The problem of a model outside of any strategy's scope; None if none."""
    largest = max(
        strategy_lib.alive, key=lambda s: len(s.devices), default=None
    )
    if largest is not None and len(largest.devices) > 1:
        names = [short(device) for device in largest.devices]
        return (
            f"{'' if spread else 'nothing is split: '}`parallelize` was called "
            "outside of the scope of this program's ConvParallelStrategy, and "
            f"heeds neither its {len(names)} devices ({', '.join(names)}) nor "
            "its plan. Make the model, and call `parallelize`, within "
            "`with strategy.scope():`."
        )
    if largest is not None:
        return None
    if "TF_CONFIG" in os.environ:
        return (
            "TF_CONFIG is set, and this program has no ConvParallelStrategy, "
            "which would join that cluster: nothing is split between its "
            "tasks. Make one at the start, before any variable, and call "
            "`parallelize` within `with strategy.scope():`."
        )
    if algorithm is None and not spread:
        return (
            "nothing is split: this program has no ConvParallelStrategy. Make "
            "one at the start, before any variable, and call `parallelize` "
            "within `with strategy.scope():`; "
            '`algorithm="auto"` makes one device faster.'
        )
    return None


def _spread_and_unsplit(
    model: Any,
) -> tuple[list[Any], list[_unsplit_convolutions.Unsplit]]:
    """Convolutions that devices share, and the rest.

    Those that have no input shape yet will be shared, if there are devices.
    """
    several_devices = len(_devices()) > 1
    spread = [
        layer
        for layer in layers_of(model)
        if isinstance(layer, ConvParallel)
        and (layer.is_spread or (several_devices and not layer.built))
    ]
    spread_ids = set(map(id, spread))
    unsplit = [
        convolution
        for convolution in _unsplit_convolutions.unsplit_convolutions(model)
        if id(convolution.layer) not in spread_ids
    ]
    return spread, unsplit


def _devices_of(layer: Any) -> tuple[str, ...]:
    layout = layer._samples or layer._layout
    return tuple(layout.devices) if layout else _devices()


def _devices() -> tuple[str, ...]:
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, ConvParallelStrategy):
        return strategy.devices
    return ()


def _listed(unsplit: list[_unsplit_convolutions.Unsplit]) -> str:
    named = []
    for convolution in unsplit[:_NAMED]:
        inside = (
            f", inside '{convolution.held_by[-1].name}'"
            if convolution.held_by
            else ""
        )
        named.append(f"'{convolution.layer.name}'{inside}")
    if (more := len(unsplit) - _NAMED) > 0:
        named.append(f"{more} more")
    return " and ".join(named) + " (`summary()` says why)"


def _chief() -> str:
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, ConvParallelStrategy):
        return short(strategy.chief_device)
    return short(default_devices()[0])


def _s(count: int) -> str:
    return "" if count == 1 else "s"
