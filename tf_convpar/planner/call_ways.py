"""The ways in which each call of a graph can run, and their moves.

A call runs on the chief, on shards of channels ("filters") or on shards of
samples. Layouts and moves are those that parallel layers and rules state
themselves (`ConvParallel.moves`, `Rule.moves`, `SampleRule.moves`), so that
what is planned is what runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras

from tf_convpar import sharding
from tf_convpar.layers import Split
from tf_convpar.placement import AnyLayout
from tf_convpar.placement import Layout
from tf_convpar.placement import Move
from tf_convpar.placement import Place
from tf_convpar.placement import SampleLayout
from tf_convpar.sharding import Call
from tf_convpar.sharding import Graph
from tf_convpar.sharding import works_on_channels
from tf_convpar.sharding import works_on_samples

CHIEF = "chief"
FILTERS = "filters"
SAMPLES = "samples"
STATES = (CHIEF, FILTERS, SAMPLES)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Arguments of `parallelize`, besides a plan, that change what travels.

    ```python
    parallelize(model, plan, **vars(Settings(moments="own")))
    ```

    Attributes:
        wire_dtype: Dtype in which tensors travel; None for their own.
        moments: Of which samples batch normalization takes the moments.
    """

    wire_dtype: str | None = None
    moments: str = "all"

    def __post_init__(self) -> None:
        sharding.check_moments(self.moments)


DEFAULTS = Settings()


@dataclasses.dataclass(frozen=True)
class Cut:
    """How many samples, and how many filters, each device gets.

    Attributes:
        devices: Names of the devices, the chief's first.
        batch: Samples of a step.
        shares: Samples of each device.
        counts: Filters of each device, by the layer's number of filters.
            Layers with the same number are cut alike, so that feature maps
            that are added lie alike.
        settings: Other arguments that change what travels.
    """

    devices: tuple[str, ...]
    batch: int
    shares: tuple[int, ...]
    counts: Mapping[int, tuple[int, ...]]
    settings: Settings = DEFAULTS

    @property
    def chief(self) -> str:
        """Name of the device that has whatever is not cut."""
        return self.devices[0]


@dataclasses.dataclass(frozen=True)
class CallWay:
    """One way to run a call.

    Attributes:
        gives: State of the outputs, one of `STATES`.
        takes: For each input, the move that must come first, by the input's
            state; None where nothing moves.
        during: Other moves, when the call runs.
        ahead: Moves for which nobody has to wait: weights may travel at any
            time before the call, and their gradients return at any time after
            it.
        stored: Fraction of the weights that each device stores and updates;
            empty where the chief has all.
    """

    gives: str
    takes: tuple[Mapping[str, Move | None], ...]
    during: tuple[Move, ...] = ()
    ahead: tuple[Move, ...] = ()
    stored: tuple[float, ...] = ()


class CallWays:
    """The ways of all calls of a graph.

    ```python
    ways = CallWays(graph, cut)
    ways.of[3][SAMPLES].ahead  # the kernel of the fourth call
    ```

    Args:
        graph: Graph of the model.
        cut: How work is cut.

    Attributes:
        of: For each call, its ways by name.
    """

    def __init__(self, graph: Graph, cut: Cut) -> None:
        self._graph = graph
        self._cut = cut
        # How each tensor lies if all calls before it are on shards of channels.
        self._channels: dict[int, Layout] = {}
        pairs = [
            (d, n) for d, n in zip(cut.devices, cut.shares, strict=True) if n
        ]
        devices, shares = zip(*pairs, strict=True)
        wire = cut.settings.wire_dtype
        self._samples = SampleLayout(cut.chief, devices, shares, wire)
        self.of: list[dict[str, CallWay]] = [self._ways(c) for c in graph.calls]

    def joined(self, tensor: int, state: str) -> Move | None:
        """The move that makes a tensor whole on the chief; None if it is."""
        lies = self._layout_of(tensor, state)
        if lies is None:
            return None
        spec = self._graph.tensors[tensor]
        width = min(spec.width, _width(lies.wire) or spec.width)
        shape = spec.batch_shape(self._cut.batch)
        return Move(shape, lies, None, self._cut.chief, width, spec.learns)

    def by_channels(self, tensor: int) -> Layout | None:
        """The layout of a tensor in shards of channels; None if it has none."""
        return self._channels.get(tensor)

    def _layout_of(self, tensor: int, state: str) -> AnyLayout | None:
        if state == CHIEF:
            return None
        if state == SAMPLES:
            return self._samples
        return self._channels[tensor]

    def _states(self, tensor: int) -> Sequence[str]:
        """The states in which a tensor can be."""
        some = (CHIEF, SAMPLES)
        return STATES if tensor in self._channels else some

    def _ways(self, call: Call) -> dict[str, CallWay]:
        takes = tuple(
            {s: self.joined(x, s) for s in self._states(x)} for x in call.inputs
        )
        first = tuple(float(d == 0) for d in range(len(self._cut.devices)))
        ways = {CHIEF: CallWay(CHIEF, takes, stored=first)}
        if call.layer is None:
            return ways
        if call.splits:
            return ways | self._convolution_ways(call)
        return ways | self._channel_ways(call) | self._sample_ways(call)

    def _convolution_ways(self, call: Call) -> dict[str, CallWay]:
        cut = self._cut
        (x,) = call.inputs
        filters = filters_of(self._graph, call)
        wire = getattr(call.layer, "wire_dtype", None)
        wire = wire or cut.settings.wire_dtype
        ways = {}
        for split in (
            Split(FILTERS, cut.counts[filters]),
            Split(SAMPLES, cut.shares),
        ):
            name = split.by
            if name == SAMPLES and isinstance(call.layer, keras.layers.Dense):
                continue  # Its weights stay where they are.
            shape = self._graph.tensors[x].batch_shape(cut.batch)
            incoming = self._channels.get(x)
            layer: Any = sharding.planned(call.layer, wire_dtype=wire)
            layer.lay_out(split, cut.devices, cut.chief, shape, incoming, wire)
            if not layer.will_spread:
                continue
            maps = layer.maps_layout(shape)
            moves = {
                state: layer.moves(
                    shape, self._layout_of(x, state), call.before
                )
                for state in self._states(x)
            }
            takes = {
                state: state_moves[0] for state, state_moves in moves.items()
            }
            others = tuple(moves[CHIEF][1:])
            if isinstance(maps, Layout):
                self._channels[call.outputs[0]] = maps
            ways[name] = CallWay(
                name if maps is not None else CHIEF,
                (takes,),
                during=() if name == SAMPLES else others,
                ahead=others if name == SAMPLES else (),
                stored=self._stored(layer),
            )
            if maps is None:
                # Its activation needs joined feature maps.
                during = (*ways[name].during, self._output_move(call, layer))
                ways[name] = dataclasses.replace(ways[name], during=during)
        return ways

    def _output_move(self, call: Call, layer: Any) -> Move:
        """The move of a convolution's feature maps to the chief."""
        (y,) = call.outputs
        spec = self._graph.tensors[y]
        lies = layer._samples or layer._layout_of_maps(layer._layout, None)
        shape = spec.batch_shape(self._cut.batch)
        return Move(shape, lies, None, self._cut.chief, spec.width, True)

    def _stored(self, layer: Any) -> tuple[float, ...]:
        """Fraction of the weights that each device stores."""
        layout = layer._layout
        parts = dict.fromkeys(self._cut.devices, 0.0)
        if layout is None:
            parts[self._cut.chief] = 1.0
        else:
            for device, n in zip(layout.devices, layout.sizes, strict=True):
                parts[device] += n / sum(layout.sizes)
        return tuple(parts.values())

    def _shapes(self, call: Call) -> list[tuple[int, ...]]:
        tensors = self._graph.tensors
        return [tensors[x].batch_shape(self._cut.batch) for x in call.inputs]

    def _channel_ways(self, call: Call) -> dict[str, CallWay]:
        inputs = [self._channels.get(x) for x in call.inputs]
        known = [layout for layout in inputs if layout is not None]
        if not known or len(known) < len(inputs):
            return {}
        match = works_on_channels(call.node, known)
        if match is None:
            return {}
        rule, output = match
        shapes = self._shapes(call)
        if output is not None:
            for y in call.outputs:
                self._channels[y] = output
        # The way is possible only if all inputs lie so: then nothing moves.
        takes = tuple({FILTERS: None} for _ in call.inputs)
        moves = rule.moves(call.layer, known, shapes)
        gives = CHIEF if output is None else FILTERS
        return {FILTERS: CallWay(gives, takes, during=tuple(moves))}

    def _sample_ways(self, call: Call) -> dict[str, CallWay]:
        rule = works_on_samples(call.node, self._cut.settings.moments)
        if rule is None:
            return {}
        shapes = self._shapes(call)

        def moves(places: Sequence[Place]) -> list[Move]:
            return rule.moves(
                call.layer, self._samples, shapes, places, call.before, True
            )

        by_state = {
            state: moves(
                [
                    self._layout_of(x, state)
                    if state in self._states(x)
                    else None
                    for x in call.inputs
                ]
            )
            for state in STATES
        }
        takes = tuple(
            {state: by_state[state][i] for state in self._states(x)}
            for i, x in enumerate(call.inputs)
        )
        others = by_state[SAMPLES][len(call.inputs) :]
        # Weights may travel early, and what nobody waits for at any time.
        # Moments of all are known only when the layer runs.
        ahead = [
            m
            for m in others
            if isinstance(m.place, Layout | None) or not rule.waits
        ]
        during = [m for m in others if m not in ahead]
        return {SAMPLES: CallWay(SAMPLES, takes, tuple(during), tuple(ahead))}


def has_filters(call: Call) -> bool:
    """Whether a call's work is in proportion to its filters, or its units."""
    names = ("filters", "units")
    return call.splits and any(hasattr(call.layer, name) for name in names)


def filters_of(graph: Graph, call: Call) -> int:
    """Filters of a convolution; for a depthwise one, its output channels.

    For a dense layer they are its units.
    """
    if has_filters(call):
        layer = call.layer
        return int(getattr(layer, "filters", None) or layer.units)
    last = call.layer.data_format == "channels_last"
    return graph.tensors[call.outputs[0]].shape[-1 if last else 0]


def _width(wire: str | None) -> int | None:
    return {"float32": 4, "bfloat16": 2, "float16": 2}.get(wire or "")
