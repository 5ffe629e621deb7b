"""A model like another, of other layers, with its weights and training state.

Both ways, `parallelize` and `merge`, go through here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import keras
from keras.src.models.functional import Functional
from keras.src.saving import serialization_lib
from keras.src.trainers.trainer import model_supports_jit


def check(model: Any) -> None:
    """Raises ValueError unless a model can be taken apart."""
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"Expected a keras.Model. Received: {model!r} "
            f"(of type {type(model).__name__})."
        )
    whole = isinstance(model, keras.Sequential) or (
        isinstance(model, Functional) and hasattr(model, "_nodes_by_depth")
    )
    if not whole:
        raise ValueError(
            "Expected a Sequential or functional model, whose layers and their "
            f"order are known. Received: '{model.name}' of the class "
            f"{type(model).__name__}, whose `call` is its own. Either use "
            "convpar.ConvParallel2D and its like where the class makes its "
            "layers, or make a functional model of it: keras.Model(inputs, "
            "outputs)."
        )
    if not model.built:
        raise ValueError(
            "Expected a model that is built. Received: "
            f"'{model.name}', whose input has no shape yet. Begin it with "
            "keras.Input(shape), or call model.build(shape)."
        )


def rebuild(model: Any, make: Callable[[Any], Any]) -> Any:
    """The same graph of the layers that `make` gives.

    Args:
        model: Sequential or functional, models within it included.
        make: The new layer for each.
    """
    with _uncompiled(model), any_layer():
        return keras.models.clone_model(
            model, clone_function=make, recursive=True
        )


def any_layer() -> Any:
    """Layers are made anew of their configs; those of files may be unsafe.

    These come from a model that is there already, Lambda layers included.
    """
    return serialization_lib.SafeModeScope(safe_mode=False)


@contextlib.contextmanager
def _uncompiled(model: Any) -> Iterator[None]:
    """Keras would compile the clone by names; losses may have none."""
    models = [
        m
        for m in (model, *model._flatten_layers(include_self=False))
        if getattr(m, "compiled", False)
    ]
    for m in models:
        m.compiled = False
    try:
        yield
    finally:
        for m in models:
            m.compiled = True


def copy_weights(pairs: Iterable[tuple[Any, Any]]) -> None:
    """From the first layer of each pair to the second."""
    for old, new in pairs:
        if isinstance(old, keras.Model) or not hasattr(old, "variables"):
            continue  # Its layers come by themselves; operations have none.
        for source, target in zip(old.variables, new.variables, strict=True):
            target.assign(source.numpy())


def copy_training(old: Any, new: Any) -> None:
    """Compiles the new model like the old, the optimizer's state included."""
    if not old.compiled:
        return
    given = dict(old._compile_config.config)
    # A parallel model cannot be compiled by XLA; what was asked for is kept
    # for the way back.
    jit_compile = getattr(old, "_asked_jit_compile", given["jit_compile"])
    given["jit_compile"] = jit_compile and model_supports_jit(new)
    given["optimizer"] = _alike(old.optimizer)
    for name in ("metrics", "weighted_metrics"):
        given[name] = keras.tree.map_structure(_alike, given.get(name))
    new.compile(**given)
    new._asked_jit_compile = jit_compile
    if not old.optimizer.built:
        return
    new.optimizer.build(new.trainable_variables)
    for source, target in zip(
        old.optimizer.variables, new.optimizer.variables, strict=True
    ):
        target.assign(source.numpy())


def _alike(thing: Any) -> Any:
    """Another of the same config, where it has a state of its own."""
    if not isinstance(thing, keras.Metric | keras.optimizers.Optimizer):
        return thing
    return type(thing).from_config(thing.get_config())
