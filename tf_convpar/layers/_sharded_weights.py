"""Layouts of a parallel layer's weights, and the split of its work.

Kinds of layers differ in which axis of each weight is cut (`_cut_axes`), and in
how many channels devices share (`_channels_to_share`). Some also override
`_layout_by_filters` and `_layout_of_maps`.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat.keras import layers_of
from tf_convpar._compat.keras import own_variables
from tf_convpar.algorithms import check_algorithm
from tf_convpar.layers._channels import channel_axis
from tf_convpar.layers._split import Split
from tf_convpar.layers._split import layout_of_counts
from tf_convpar.placement import AnyLayout
from tf_convpar.placement import Layout
from tf_convpar.placement import PlacedVariable
from tf_convpar.placement import SampleLayout
from tf_convpar.placement import place
from tf_convpar.plans import CHIEF
from tf_convpar.plans import whole_shares
from tf_convpar.strategy.arguments import check_wire_dtype
from tf_convpar.strategy.devices import default_devices
from tf_convpar.strategy.fused_updates import fuse_updates
from tf_convpar.strategy.keras_training import make_slots_first
from tf_convpar.strategy.strategy import ConvParallelStrategy


class InShards(keras.layers.Layer):
    """A Keras layer whose weights lie in shards.

    To Keras each weight is one variable of the merged shape.
    """

    # The axis that is cut of each weight, by the weight's name.
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
        """Sets the attributes that a parallel layer has beside its Keras twin.

        The arguments are those of `ConvParallel2D`.
        """
        check_wire_dtype(wire_dtype)
        if algorithm is not None:
            check_algorithm(algorithm)
        self.shards = Split(split or "filters", shards).shards
        self.split = split
        self.wire_dtype = wire_dtype
        self.algorithm = algorithm
        # In a region, feature maps stay in shards for the next layer.
        self._in_region = False
        # Whether a normalization may be computed with it in inference.
        self._recomputable = False
        # Layouts of the weights, and of the samples if these are split.
        self._layout: Layout | None = None
        self._samples: SampleLayout | None = None

    def _channels_to_share(self, input_shape: Sequence[int | None]) -> int:
        """The number of channels that `shards` refer to."""
        return int(self.filters)

    def build(self, input_shape: Any) -> None:
        """Makes the weights, each shard on its device."""
        self._lay_out(input_shape)
        super().build(input_shape)

    def place(self, input_shape: Any) -> None:
        """Cuts the weights of a layer that was built whole."""
        self._lay_out(input_shape)
        for variable in own_variables(self):
            layout = self._layout_of(variable.name, variable.shape)
            if layout is not None:
                place(variable, layout)

    def _lay_out(
        self, input_shape: Any, incoming: AnyLayout | None = None
    ) -> None:
        """Settles the layouts of weights and samples, unless there are some.

        A region does so before the layer is built.
        """
        if self._layout is not None or self._samples is not None:
            return
        split, devices, owner = self._split_and_devices(input_shape)
        wire = self._wire()
        self.lay_out(split, devices, owner, input_shape, incoming, wire)

    def lay_out(
        self,
        split: Split,
        devices: Sequence[str],
        owner: str,
        input_shape: Any,
        incoming: AnyLayout | None = None,
        wire: str | None = None,
    ) -> None:
        """Settles the layouts of weights and samples.

        Args:
            split: How the work is cut.
            devices: Names of the devices that share the work.
            owner: The chief's device.
            input_shape: Shape of the layer's input, with the batch.
            incoming: Layout of its input; None if that is on the chief.
            wire: The dtype in which tensors travel; None for their own.
        """
        if split.by == CHIEF:
            self._layout = self._layout_by_filters(None, input_shape, incoming)
            return
        total = self._channels_to_share(input_shape)
        if split.by == "filters":
            counts = split.counts(total, len(devices))
            by_shards = layout_of_counts(Layout, counts, devices, owner, wire)
            self._layout = self._layout_by_filters(
                by_shards, input_shape, incoming
            )
            return
        shares = split.shares(len(devices))
        self._samples = layout_of_counts(
            SampleLayout, shares, devices, owner, wire
        )
        if self._samples is not None:
            # Weights travel: with equal shards, all links carry as much.
            names = self._samples.devices
            equal = Split("filters").counts(total, len(names))
            self._layout = layout_of_counts(Layout, equal, names, owner, wire)

    def _layout_by_filters(
        self,
        by_shards: Layout | None,
        input_shape: Any,
        incoming: AnyLayout | None,
    ) -> Layout | None:
        """The layout of the weights of a layer that is split by filters.

        Args:
            by_shards: The layout by `shards` alone; None if nothing is split.
            input_shape: Shape of the layer's input, with the batch.
            incoming: Layout of its input; None if that is on the chief.
        """
        return by_shards

    def _layout_of_maps(self, layout: Layout, input_shape: Any) -> Layout:
        return dataclasses.replace(layout, axis=channel_axis(self))

    def _split_and_devices(
        self, input_shape: Any
    ) -> tuple[Split, tuple[str, ...], str]:
        """The layer's split, the devices, and the chief's device.

        The layer's own shards go first, then the strategy's plan, then the
        strategy's shares.
        """
        strategy = tf.distribute.get_strategy()
        split = Split(CHIEF)
        if self.shards is not None or self.split is not None:
            split = Split(self.split or "filters", self.shards)
        elif isinstance(strategy, ConvParallelStrategy):
            split = Split.of(strategy.planned(self, input_shape))
        if isinstance(strategy, ConvParallelStrategy):
            devices, owner = strategy.devices, strategy.chief_device
            strategy.note(self.name)
            if split.shards is None and strategy.shares is not None:
                split = self._split_by_strategy(
                    split, strategy.shares, input_shape
                )
        else:
            devices = tuple(default_devices())
            owner = devices[0]
        if split.shards and len(split.shards) > len(devices):
            warnings.warn(
                f"Layer '{self.name}' has {len(split.shards)} shards and this "
                f"program {len(devices)} devices: shards share devices. "
                "Results stay the same.",
                stacklevel=2,
            )
        return split, devices, owner

    def _split_by_strategy(
        self,
        split: Split,
        shares: Sequence[float],
        input_shape: Sequence[int | None],
    ) -> Split:
        """The split by the strategy's shares, where the layer has none."""
        if split.by == CHIEF:
            return split
        if split.by == "samples":
            return Split(split.by, shares)
        total = self._channels_to_share(input_shape)
        return Split(
            split.by, whole_shares(shares, total, len(shares), each=True)
        )

    def _wire(self) -> str | None:
        """The wire dtype as an argument: the layer's, else the strategy's."""
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
        """Adds a weight as Keras does; if it is cut, its shards are placed."""
        layout = self._layout_of(kwargs.get("name"), shape)
        if layout is None:
            return super().add_weight(shape, *args, **kwargs)
        with keras.name_scope(self.name, caller=self):
            variable = PlacedVariable(
                kwargs["initializer"],
                shape=shape,
                dtype=kwargs.get("dtype") or self.variable_dtype,
                trainable=kwargs.get("trainable", True),
                name=kwargs["name"],
                layout=layout,
            )
        variable.regularizer = kwargs["regularizer"]
        variable.constraint = kwargs["constraint"]
        self._track_variable(variable)
        return variable

    def get_config(self) -> dict[str, Any]:
        """The config of the Keras layer, with the arguments of this one."""
        return {
            **super().get_config(),
            "shards": self.shards,
            "wire_dtype": self.wire_dtype,
            "algorithm": self.algorithm,
            "split": self.split,
        }

    def __repr__(self) -> str:
        kind = type(self).__name__
        if "Conv" in kind:
            kind = kind.replace("Conv", "ConvParallel")
        else:
            kind += "Parallel"
        return (
            f"<{kind} name={self.name}, "
            f"shards={self._shards_or_shares()}, built={self.built}>"
        )

    def _shards_or_shares(self) -> Any:
        """Shares of samples, or filters, of each device, for `repr`."""
        if self._samples is not None:
            return self._samples.shares
        return self._layout.sizes if self._layout else self.shards


# By the layers: without a strategy nothing else tells these models apart.
make_slots_first(
    lambda model: any(isinstance(one, InShards) for one in layers_of(model))
)
fuse_updates(
    lambda model: any(
        getattr(one, "algorithm", None) == "auto" for one in layers_of(model)
    )
)
