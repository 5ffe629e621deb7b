"""Slots and XLA settings of a model's copy, so that it trains on like it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from tf_convpar._compat.keras import layers_of
from tf_convpar._compat.keras import model_supports_jit
from tf_convpar._compat.keras import trained_by
from tf_convpar.layers import Attached
from tf_convpar.placement import PlacedVariable
from tf_convpar.placement import place


def place_slots(optimizers: Iterable[Any]) -> None:
    """Cuts the slots of optimizers like the kernels they belong to.

    Keras' optimizers keep slots in lists, in the order of the variables that
    they train.
    """
    for optimizer in optimizers:
        trained = trained_by(optimizer)
        for slots in list(vars(optimizer).values()):
            if not isinstance(slots, list) or len(slots) != len(trained):
                continue
            for slot, variable in zip(slots, trained, strict=True):
                if _belongs(slot, variable):
                    place(slot, variable.layout)


def _belongs(slot: Any, variable: Any) -> bool:
    return (
        isinstance(slot, keras.Variable)
        and not isinstance(slot, PlacedVariable)
        and isinstance(variable, PlacedVariable)
        and slot.shape == variable.shape
    )


def _has_ops(model: keras.Model) -> bool:
    """Whether layers of Keras' run as this package's ops, which XLA lacks."""
    return any(
        isinstance(vars(layer).get("call"), Attached)
        for layer in layers_of(model)
    )


def settle_xla(pairs: Iterable[tuple[Any, Any]]) -> None:
    """Turns XLA off in parallel models, and on again in merged ones.

    XLA cannot compile a parallel model. What its user asked for is kept in the
    copy for the way back.

    Args:
        pairs: Layers and models, each with its copy.
    """
    for old, new in pairs:
        if isinstance(old, keras.Model) and old.compiled:
            jit_compile = getattr(old, "_asked_jit_compile", old.jit_compile)
            vars(new)["_asked_jit_compile"] = jit_compile
            compiles = model_supports_jit(new) and not _has_ops(new)
            new.jit_compile = jit_compile and compiles
