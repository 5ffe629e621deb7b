"""How the weights of a parallel layer lie, and how its work is cut.

What kinds of layers differ in is stated by two members: which axis of each
weight is cut (`_cut_axes`), and how many channels there are to give out
(`_given_out`).
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar.algorithms import check_algorithm
from tf_convpar.layers._shards import Split
from tf_convpar.layers._shards import held
from tf_convpar.placement import AnyLayout
from tf_convpar.placement import Layout
from tf_convpar.placement import PlacedVariable
from tf_convpar.placement import SampleLayout
from tf_convpar.placement import ShardedVariable
from tf_convpar.placement import place
from tf_convpar.strategy.devices import default_devices
from tf_convpar.strategy.strategy import ConvParallelStrategy
from tf_convpar.strategy.strategy import check_wire_dtype


class InShards(keras.layers.Layer):
    """A Keras layer whose weights lie in shards.

    To Keras each weight is one variable of the merged shape.
    """

    # Of each weight that is cut, by its name.
    _cut_axes: Mapping[str, int] = {"kernel": -1, "bias": -1}

    def __init__(
        self,
        *args: Any,
        shards: Sequence[float] | None = None,
        wire_dtype: str | None = None,
        algorithm: str | None = None,
        split: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.spread(shards, wire_dtype, algorithm, split)

    def spread(
        self,
        shards: Sequence[float] | None = None,
        wire_dtype: str | None = None,
        algorithm: str | None = None,
        split: str | None = None,
    ) -> None:
        """Sets what a parallel layer has beside its Keras twin."""
        check_wire_dtype(wire_dtype)
        if algorithm is not None:
            check_algorithm(algorithm)
        self.shards = Split(split or "filters", shards).shards
        self.split = split
        self.wire_dtype = wire_dtype
        self.algorithm = algorithm
        # XLA would compile the layer for one device.
        self.supports_jit = False
        # In a region feature maps stay in shards for the next layer.
        self._in_region = False
        # How weights lie, and if the layer is split by samples these.
        self._layout: Layout | None = None
        self._samples: SampleLayout | None = None

    def _given_out(self, input_shape: Sequence[int | None]) -> int:
        """How many channels `shards` refer to."""
        return int(self.filters)

    def build(self, input_shape: Any) -> None:
        """Makes the weights, each shard on its device."""
        self._lay_out(input_shape)
        super().build(input_shape)

    def place(self, input_shape: Any) -> None:
        """Cuts the weights of a layer that was built whole."""
        self._lay_out(input_shape)
        for variable in (
            self._trainable_variables + self._non_trainable_variables
        ):
            layout = self._layout_of(variable.name, variable.shape)
            if layout is not None:
                place(variable, layout)

    def _lay_out(
        self, input_shape: Any, incoming: AnyLayout | None = None
    ) -> None:
        """Settles how weights and samples lie, unless a region has."""
        if self._layout is not None or self._samples is not None:
            return
        split, devices, owner = self._given(input_shape)
        wire = self._wire()
        self.lay_out(split, devices, owner, input_shape, incoming, wire)

    def lay_out(
        self,
        split: Split | None,
        devices: Sequence[str],
        owner: str,
        input_shape: Any,
        incoming: AnyLayout | None = None,
        wire: str | None = None,
    ) -> None:
        """Settles how weights and samples lie.

        Args:
            split: How the work is cut.
            devices: Over which.
            owner: The chief's.
            input_shape: Of the layer, with the batch.
            incoming: How its input lies in shards; None if on the chief.
            wire: The dtype in which to travel; None for its own.
        """
        if split is None:
            self._layout = self._layout_by_filters(None, input_shape, incoming)
            return
        total = self._given_out(input_shape)
        if split.by == "filters":
            counts = split.counts(total, len(devices))
            given = held(Layout, counts, devices, owner, wire)
            self._layout = self._layout_by_filters(given, input_shape, incoming)
            return
        shares = split.shares(len(devices))
        self._samples = held(SampleLayout, shares, devices, owner, wire)
        if self._samples is not None:
            # Weights travel: with equal shards no link has more than others.
            names = self._samples.devices
            equal = Split("filters").counts(total, len(names))
            self._layout = held(Layout, equal, names, owner, wire)

    def _layout_by_filters(
        self,
        given: Layout | None,
        input_shape: Any,
        incoming: AnyLayout | None,
    ) -> Layout | None:
        """How weights lie, given how they would by shards alone."""
        return given

    def _layout_of_maps(self, layout: Layout, input_shape: Any) -> Layout:
        return dataclasses.replace(layout, axis=self._channel_axis())

    def _given(
        self, input_shape: Any
    ) -> tuple[Split | None, tuple[str, ...], str]:
        """How the layer is split, over which devices, and which the chief's is.

        The layer's own shards go first, then the strategy's plan.
        """
        strategy = tf.distribute.get_strategy()
        split = None
        if self.shards is not None or self.split is not None:
            split = Split(self.split or "filters", self.shards)
        if isinstance(strategy, ConvParallelStrategy):
            devices, owner = strategy.devices, strategy.chief_device
            split = split or Split.of(strategy.planned(self, input_shape))
        else:
            devices = tuple(default_devices())
            owner = devices[0]
        if split and split.shards and len(split.shards) > len(devices):
            warnings.warn(
                f"Layer '{self.name}' has {len(split.shards)} shards and this "
                f"program {len(devices)} devices: shards share devices. "
                "Results stay the same.",
                stacklevel=2,
            )
        return split, devices, owner

    def _wire(self) -> str | None:
        """The dtype to travel in: the layer's own, else the strategy's."""
        strategy = tf.distribute.get_strategy()
        if isinstance(strategy, ConvParallelStrategy):
            return self.wire_dtype or strategy.wire_dtype
        return self.wire_dtype

    def _layout_of(self, name: str | None, shape: Any) -> Layout | None:
        """The layout of a weight; None where it is not cut."""
        axis = self._cut_axes.get(name or "")
        if self._layout is None or axis is None:
            return None
        # A bias may have several numbers for each channel given out.
        times = shape[axis] // self._layout.total
        return dataclasses.replace(
            self._layout,
            axis=axis,
            sizes=tuple(times * n for n in self._layout.sizes),
            wire=None,
        )

    def add_weight(self, shape: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As of any Keras layer; what is cut is placed."""
        layout = self._layout_of(kwargs.get("name"), shape)
        if layout is None:
            return super().add_weight(shape, *args, **kwargs)
        with keras.name_scope(self.name, caller=self):
            variable = PlacedVariable(
                kwargs["initializer"],
                shape=shape,
                dtype=kwargs["dtype"],
                trainable=kwargs["trainable"],
                name=kwargs["name"],
                layout=layout,
            )
        variable.regularizer = kwargs["regularizer"]
        variable.constraint = kwargs["constraint"]
        self._track_variable(variable)
        return variable

    @property
    def is_sharded(self) -> bool:
        """Whether the weights are in shards now."""
        return any(isinstance(v._value, ShardedVariable) for v in self.weights)

    @property
    def is_spread(self) -> bool:
        """Whether devices share the work: by filters or by samples."""
        return self._samples is not None or self.is_sharded

    @property
    def will_spread(self) -> bool:
        """Whether devices share the work as it has been laid out."""
        return self._samples is not None or self._layout is not None

    def _wire_dtype_for(self, dtype: Any) -> tf.DType:
        """Never wider than what is computed: that would only cost bytes."""
        computed = tf.as_dtype(dtype)
        layout = self._samples or self._layout
        wire = tf.as_dtype((layout and layout.wire) or computed)
        return wire if wire.size < computed.size else computed

    def _channel_axis(self) -> int:
        """Of feature maps, negative as layouts have it."""
        if self.data_format == "channels_last":
            return -1
        return -1 - int(self.rank)

    def get_config(self) -> dict[str, Any]:
        """The Keras layer's, with what this one adds."""
        return {
            **super().get_config(),
            "shards": self.shards,
            "wire_dtype": self.wire_dtype,
            "algorithm": self.algorithm,
            "split": self.split,
        }

    def __repr__(self) -> str:
        kind = type(self).__name__.replace("Conv", "ConvParallel")
        return (
            f"<{kind} name={self.name}, "
            f"shards={self._cut_in()}, built={self.built}>"
        )

    def _cut_in(self) -> Any:
        """Samples or filters of each device, for a reader."""
        if self._samples is not None:
            return self._samples.shares
        return self._layout.sizes if self._layout else self.shards
