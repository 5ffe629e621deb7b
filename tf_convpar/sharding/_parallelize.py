"""`parallelize`: any Keras CNN to its parallel form."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras

from tf_convpar.algorithms import check_algorithm
from tf_convpar.planner.plans._plan import load
from tf_convpar.sharding import _rebuild
from tf_convpar.sharding import _twins
from tf_convpar.sharding._attach import OnShards
from tf_convpar.sharding._regions import Regions
from tf_convpar.strategy.strategy import check_wire_dtype


def parallelize(
    model: keras.Model,
    plan: Mapping[str, Sequence[float] | None] | str | None = None,
    *,
    algorithm: str | None = None,
    wire_dtype: str | Mapping[str, str] | None = None,
) -> keras.Model:
    """The model with its convolutions spread over devices.

    ```python
    with convpar.ConvParallelStrategy().scope():
        model = keras.applications.ResNet50(weights="imagenet")
        model.compile("sgd", "sparse_categorical_crossentropy")
        model = convpar.parallelize(model)
    model.fit(x, y)
    plain = convpar.merge(model)
    ```

    Feature maps stay in shards from layer to layer: a convolution gathers its
    input from the devices that have it, not from the chief; pooling, batch
    normalization, activations and the like run where the shards are
    (`tf_convpar.sharding.rules`). Whatever has no rule runs on the chief, as
    before. Results are those of the model itself.

    Args:
        model: Sequential or functional, built; models within it and shared
            layers included. It stays as it is.
        plan: Kernels per device for each layer: as for
            `ConvParallelStrategy`, a mapping, a plan, or the path of one. Names
            may be regular expressions (`re.fullmatch`), and None leaves a
            layer on the chief: `{"stem_.*": None, "block.*": (3, 1)}`. Layers
            that are not named, and all without a plan, are shared out as the
            strategy in scope has it, else equally.
        algorithm: Of all convolutions, as of `ConvParallel2D`.
        wire_dtype: Of all of them, or by names as `plan`.

    Returns:
        A new model with the same weights, optimizer, its state, loss and
        metrics.

    Raises:
        ValueError: The model is a subclass with a `call` of its own, is not
            built, or an argument is wrong.
    """
    _rebuild.check(model)
    if algorithm is not None:
        check_algorithm(algorithm)
    shares = _Named("plan", _plan(plan))
    wires = _Named(
        "wire_dtype",
        wire_dtype if isinstance(wire_dtype, Mapping) else {".*": wire_dtype},
    )
    for wire in wires.values():
        check_wire_dtype(wire)

    def make(layer: Any) -> Any:
        if isinstance(layer, keras.Model):
            _rebuild.check(layer)  # A subclass of the user's own.
        if not _twins.is_convolution(layer):
            return type(layer).from_config(layer.get_config())
        shards = shares.find(layer.name)
        if shards is None and shares.names(layer.name):
            return _twins.plain(layer)
        return _twins.parallel(
            layer,
            shards=shards,
            algorithm=algorithm,
            wire_dtype=wires.find(layer.name),
        )

    regions = Regions(make)
    with _rebuild.any_layer():
        regions.enter(model)
    shares.check_used(model)
    if isinstance(wire_dtype, Mapping):
        wires.check_used(model)
    new = _rebuild.rebuild(model, regions.new)
    regions.place()
    _rebuild.copy_weights(regions.pairs)
    for inner in (new, *new._flatten_layers(include_self=False)):
        if isinstance(inner, keras.Model):
            # What comes out of it is joined.
            inner.call = OnShards(inner, None, ())
    _rebuild.copy_training(model, new)
    return new


def _plan(plan: Any) -> Mapping[str, Any]:
    if plan is None:
        return {}
    if isinstance(plan, str | os.PathLike):
        return load(plan)
    if not isinstance(plan, Mapping):
        raise ValueError(
            "Expected `plan` to map names of layers, or regular expressions, "
            "to kernels per device, such as {'conv.*': (3, 1)}, or to be the "
            f"path of a plan's file. Received: plan={plan!r}."
        )
    return plan


class _Named:
    """Values by names of layers; a name itself, or a regular expression."""

    def __init__(self, argument: str, given: Mapping[str, Any]) -> None:
        self._argument = argument
        self._given = dict(given)
        self._patterns = {}
        for name in given:
            try:
                self._patterns[name] = re.compile(name)
            except re.error as error:
                raise ValueError(
                    f"Expected the keys of `{argument}` to be names of layers "
                    f"or regular expressions. Received: {name!r}: {error}."
                ) from error

    def values(self) -> list[Any]:
        return list(self._given.values())

    def names(self, name: str) -> bool:
        """Whether a key stands for this layer."""
        return self._key(name) is not None

    def find(self, name: str) -> Any:
        """The value for a layer; None if there is none."""
        key = self._key(name)
        return None if key is None else self._given[key]

    def _key(self, name: str) -> str | None:
        if name in self._given:
            return name
        found = [k for k, p in self._patterns.items() if p.fullmatch(name)]
        if len(found) > 1:
            raise ValueError(
                f"Expected one key of `{self._argument}` for layer '{name}'. "
                f"Received: {found}, all of which match."
            )
        return found[0] if found else None

    def check_used(self, model: Any) -> None:
        """Raises ValueError where a key stands for no convolution."""
        names = [
            layer.name
            for layer in model._flatten_layers(include_self=False)
            if _twins.is_convolution(layer)
        ]
        used = {self._key(name) for name in names}
        unused = [key for key in self._given if key not in used]
        if unused:
            raise ValueError(
                f"Expected each key of `{self._argument}` to stand for a "
                f"convolution of '{model.name}': one of {names}. Received: "
                f"{unused}, which stand for none."
            )
