"""Moves a model in training to another layout, on other devices.

The model is made anew from a plain one that has its weights and slots, and then
becomes what was made: callbacks, Keras' loop and the program hold on to it.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras

from tf_convpar._compat.keras import layers_of
from tf_convpar._compat.keras import of_a_fit
from tf_convpar._compat.keras import print_msg
from tf_convpar.cluster import memory
from tf_convpar.layers import ConvParallel
from tf_convpar.layers import Split
from tf_convpar.plans import CHIEF
from tf_convpar.sharding import _conversion
from tf_convpar.sharding._parallelize import parallelize
from tf_convpar.sharding._trainable import succeed
from tf_convpar.sharding.rules import MomentsOfOwn
from tf_convpar.strategy import graphs
from tf_convpar.strategy.strategy import ConvParallelStrategy


@dataclasses.dataclass(frozen=True)
class LayerSplit:
    """How a convolution is split, and computed.

    Attributes:
        by: How it is cut, as `Split.by`.
        shares: The share of each device; None for equal ones, or for the chief
            alone.
        algorithm: As for `ConvParallel2D`.
        wire_dtype: As for `ConvParallel2D`.
    """

    by: str
    shares: Sequence[float] | None = None
    algorithm: str | None = None
    wire_dtype: str | None = None

    @property
    def is_spread(self) -> bool:
        """Whether devices share it."""
        return self.by != CHIEF


@dataclasses.dataclass(frozen=True)
class HowSplit:
    """How a parallel model is split; what a copy needs to be split alike.

    Attributes:
        devices: Devices that shares refer to.
        layers: How each convolution is split, by its name.
        speeds: How fast devices are now, where that differs: 0.5 for half as
            fast as when the shares were chosen.
        planned: Convolutions whose shares the strategy's planner has chosen,
            by its measurements (`plan="auto"`).
        moments: As for `parallelize`.
    """

    devices: tuple[str, ...]
    layers: dict[str, LayerSplit]
    speeds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    planned: frozenset[str] = frozenset()
    moments: str = "all"

    @classmethod
    def last(cls, model: keras.Model, devices: Sequence[str]) -> HowSplit:
        """The split at a model's last `relayout`; without one, its split now.

        Args:
            model: A parallel model.
            devices: Devices of its strategy, if it was never laid out anew.
        """
        if model not in _last:
            _last[model] = cls.of(model, devices)
        return _last[model]

    @classmethod
    def of(cls, model: keras.Model, devices: Sequence[str]) -> HowSplit:
        """The split of a model over the devices of its strategy."""
        layers: dict[str, LayerSplit] = {}
        planned = set()
        plan = model.distribute_strategy.planner().plan_now(model) or {}
        for layer in layers_of(model):
            if not _conversion.may_be_split(layer):
                continue  # A class of the user's: it is on the chief then.
            if isinstance(layer, ConvParallel):
                split = _requested_split(layer, model.distribute_strategy)
                layers[layer.name] = LayerSplit(
                    split.by,
                    split.shards,
                    layer.algorithm,
                    layer.wire_dtype,
                )
                if layer.name in plan and Split.of(plan[layer.name]) == split:
                    planned.add(layer.name)
            else:
                layers[layer.name] = LayerSplit(CHIEF)
        own_moments = any(
            isinstance(
                getattr(vars(layer).get("call"), "rule", None), MomentsOfOwn
            )
            for layer in layers_of(model)
        )
        return cls(
            tuple(devices),
            layers,
            planned=frozenset(planned),
            moments="own" if own_moments else "all",
        )

    def joined_by(self, devices: Collection[str]) -> HowSplit:
        """The same split, with a share for devices that are new.

        That is the mean of the others' shares, where nobody has measured.
        """
        new = [device for device in devices if device not in self.devices]
        layers = dict(self.layers)
        for name, layer in layers.items():
            if layer.shares is not None:
                mean = sum(layer.shares) / len(layer.shares)
                shares = (*layer.shares, *[mean] * len(new))
                layers[name] = dataclasses.replace(layer, shares=shares)
        return dataclasses.replace(
            self, devices=(*self.devices, *new), layers=layers
        )

    def on(self, devices: Collection[str]) -> dict[str, Any]:
        """The plan that shares the work among some of the devices only.

        They share what the others had in proportion to their own, and to their
        speeds; equally, where they had nothing.
        """
        plan: dict[str, Any] = {}
        for name, layer in self.layers.items():
            plan[name] = CHIEF
            if layer.is_spread:
                shares = self._shares(layer.shares, devices)
                plan[name] = {"split": layer.by, "shards": shares}
        return plan

    def _shares(
        self, shards: Sequence[float] | None, devices: Collection[str]
    ) -> tuple[float, ...]:
        shares = dict(
            zip(self.devices, shards or [1] * len(self.devices), strict=True)
        )
        present_shares = [
            # Shares that nothing changes stay the numbers that they were.
            shares[d] * self.speeds[d] if d in self.speeds else shares[d]
            for d in self.devices
            if d in devices
        ]
        return (
            tuple(present_shares)
            if any(present_shares)
            else (1,) * len(present_shares)
        )

    def time(
        self, slower: Mapping[str, float], devices: Collection[str]
    ) -> float:
        """Relative time of the convolutions, each of which waits for all.

        Args:
            slower: How many times slower devices are than when the shares were
                chosen; 1 where nothing is said.
            devices: Those that are there.
        """
        present = [d for d in self.devices if d in devices]
        total = 0.0
        for layer in self.layers.values():
            if layer.is_spread:
                shares = self._shares(layer.shares, devices)
                total += max(
                    share * slower.get(device, 1.0)
                    for share, device in zip(shares, present, strict=True)
                ) / sum(shares)
        return total


_last: weakref.WeakKeyDictionary[keras.Model, HowSplit] = (
    weakref.WeakKeyDictionary()
)


def relayout(
    model: keras.Model,
    plain: keras.Model,
    how: HowSplit,
    strategy: ConvParallelStrategy,
) -> None:
    """Gives a model the state of a plain one, on the strategy's devices now.

    ```python
    how = HowSplit.of(model, strategy.devices)
    plain = convpar.merge(model)
    strategy.change_devices(others)
    relayout(model, plain, how, strategy)
    ```

    Layers, optimizer and variables of the model are new objects.

    Args:
        model: A parallel model.
        plain: What `merge` has made of it.
        how: How the model was split.
        strategy: Strategy with the devices that there are now.
    """
    wires = {
        name: layer.wire_dtype
        for name, layer in how.layers.items()
        if layer.wire_dtype is not None
    }
    plan = how.on(strategy.devices) | _replanned(plain, how, strategy)
    # Convolutions of Keras, which could not be split, have none.
    algorithms = {
        layer.algorithm
        for layer in how.layers.values()
        if layer.is_spread or layer.algorithm is not None
    }
    with strategy.scope():
        new = parallelize(
            plain,
            plan,
            algorithm="auto" if algorithms == {"auto"} else None,
            wire_dtype=wires,
            moments=how.moments,
            verbose=False,
        )
    for layer in layers_of(new):
        split = how.layers.get(layer.name)
        if split is not None and isinstance(layer, ConvParallel):
            layer.algorithm = split.algorithm
    succeed(zip(layers_of(model), layers_of(new), strict=False))
    stays = of_a_fit(model)
    graphs.look()
    vars(model).clear()
    vars(model).update(vars(new) | stays)
    model.train_function = None
    model.test_function = None
    model.predict_function = None
    graphs.free(model, strategy.devices)
    memory.trim()
    _last[model] = how


def _requested_split(layer: Any, strategy: ConvParallelStrategy) -> Split:
    """The split that the layer, or else the strategy's plan or shares, asks."""
    if layer.split is not None or layer.shards is not None:
        split = Split(layer.split or "filters", layer.shards)
    else:
        split = Split.of(strategy.entry(layer.name))
    if split.by == CHIEF:
        return split
    return Split(split.by, split.shards or strategy.shares)


def _replanned(
    plain: keras.Model, how: HowSplit, strategy: ConvParallelStrategy
) -> dict[str, Any]:
    """A new plan for the devices there are now, if a planner made the last."""
    if not how.planned:
        return {}
    planner = strategy.planner()
    slower = {device: 1 / speed for device, speed in how.speeds.items()}
    plan = planner.again(plain, strategy.devices, slower)
    if plan is None:
        return {}
    planner.has_now(plain, plan)
    print_msg(f"{plain.name}: {plan.reason}")
    return {name: plan[name] for name in how.planned}
