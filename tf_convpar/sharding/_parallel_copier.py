"""Copies a model as a parallel one, and places its weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from tf_convpar.copying import Copies
from tf_convpar.layers import ConvParallel
from tf_convpar.layers import Split
from tf_convpar.plans import CHIEF
from tf_convpar.plans import ByLayer
from tf_convpar.sharding import _conversion
from tf_convpar.sharding._attach import Attached
from tf_convpar.sharding._regions import Regions
from tf_convpar.sharding._trainable import Followers
from tf_convpar.sharding._unsplit_convolutions import why_unsplit


class ParallelCopier:
    """Copies a model, with its convolutions spread over devices.

    ```python
    copier = ParallelCopier(splits, wires, "auto", True, "all")
    new = copier.copy_of(model)
    copier.finish(model)
    ```

    Args:
        splits: How layers are split, by their names.
        wires: Their wire dtypes, by their names.
        algorithm: Algorithm of all; None for that of each layer.
        fuses: As for `Regions`.
        moments: As for `Regions`.

    Attributes:
        copies: The `Copies` that make the model.
    """

    def __init__(
        self,
        splits: ByLayer,
        wires: ByLayer,
        algorithm: str | None,
        fuses: bool,
        moments: str,
    ) -> None:
        self._splits = splits
        self._wires = wires
        self._algorithm = algorithm
        self.copies = Copies(self._parallel, self._enter, (Attached, Followers))
        self._regions = Regions(self.copies.of, fuses, moments)
        # How many of the copied pairs have been placed.
        self._placed = 0

    def copy_of(self, model: Any) -> Any:
        """The new model, whose weights lie where they are needed."""
        new = self.copies.of(model)
        self._place()
        return new

    def finish(self, model: Any) -> None:
        """Copies the rest of the model, once slots of optimizers are placed."""
        self.copies.finish(model)
        self._place()

    def _parallel(self, layer: Any, held_by: Sequence[Any]) -> Any:
        """The parallel layer in the place of one; None for a plain copy."""
        if not _conversion.may_be_split(layer) or why_unsplit(layer, held_by):
            return None
        name = layer.name
        settings = {
            "algorithm": self._algorithm,
            "wire_dtype": self._wires.find(name),
        }
        arguments = {k: v for k, v in settings.items() if v is not None}
        if self._splits.names(name):
            planned = self._splits.find(name)
            split = Split.of(CHIEF if planned is None else planned)
            arguments |= {"split": split.by, "shards": split.shards}
        if type(layer) is keras.layers.Dense:
            if self._splits.values() and not self._splits.names(name):
                return None  # A plan for convolutions says nothing of it.
            twin: Any = _conversion.planned(layer, **arguments)
            if not twin.shares_units(layer.get_build_config()["input_shape"]):
                return None  # The chief computes it with what is around it.
        return _conversion.parallel(layer, self.copies, **arguments)

    def _enter(self, model: Any) -> None:
        """Makes the layers of a functional model before its graph is copied.

        Weights are cut before layers are called: a `tf.function` in one of them
        would go on with what it was traced with.
        """
        self._regions.enter(model)
        self._place()

    def _place(self) -> None:
        """Cuts the weights of layers that were copied since the last time."""
        while unplaced := self.copies.pairs[self._placed :]:
            self._placed += len(unplaced)
            for old, new in unplaced:
                if isinstance(new, ConvParallel) and new.built:
                    new.place(old.get_build_config()["input_shape"])
        self._regions.place()
