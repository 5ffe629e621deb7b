"""What a copy of a model needs to go on training as the model would have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
from keras.src.trainers.trainer import model_supports_jit

from tf_convpar.placement import PlacedVariable
from tf_convpar.placement import place


def place_slots(optimizers: Iterable[Any]) -> None:
    """Cuts the slots of an optimizer like the kernels they belong to.

    Keras' optimizers keep slots in lists, in the order of the variables that
    they train.
    """
    for optimizer in optimizers:
        trained = optimizer._trainable_variables
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


def settle_xla(pairs: Iterable[tuple[Any, Any]]) -> None:
    """A parallel model cannot be compiled by XLA; a merged one as before.

    What was asked for is kept for the way back.
    """
    for old, new in pairs:
        if isinstance(old, keras.Model) and old.compiled:
            asked = getattr(old, "_asked_jit_compile", old._jit_compile)
            vars(new)["_asked_jit_compile"] = asked
            new._jit_compile = asked and model_supports_jit(new)
