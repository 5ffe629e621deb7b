"""How many bytes a training step must move, by theory."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.models.functional import Functional

from tf_convpar.layers import ConvParallel
from tf_convpar.placement import Layout
from tf_convpar.placement import ShardedVariable
from tf_convpar.sharding._attach import OnShards


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes on the wire in one step.

    Attributes:
        links: From the first device of each pair to the second.
        chief: The chief's device.
    """

    links: Mapping[tuple[str, str], int]
    chief: str

    @property
    def sent(self) -> int:
        """By the chief."""
        return sum(n for (a, _), n in self.links.items() if a == self.chief)

    @property
    def received(self) -> int:
        """By the chief."""
        return sum(n for (_, b), n in self.links.items() if b == self.chief)

    @property
    def total(self) -> int:
        """Between all devices."""
        return sum(self.links.values())


def step_traffic(
    model: keras.Model, batch_size: int, training: bool = True
) -> Traffic:
    """What layouts need: never a kernel, never a slot.

    ```python
    step_traffic(model, batch_size=64).total  # bytes in a training step
    ```

    Feature maps that a device needs and does not have are sent to it, once,
    by whoever has them; in the backward pass as many numbers of their
    gradient return, if anything before them learns. Feature maps on the chief
    go to every device of a convolution; shards go from each device to the
    others; shards that are joined go to the chief; where a `Dense` layer works
    on shards, sums come to the chief in their place.

    Args:
        model: Sequential or functional, built, of parallel layers; from
            `parallelize` or not.
        batch_size: Images per step.
        training: Whether there is a backward pass.

    Returns:
        Bytes over each link.
    """
    count = _Count(batch_size, training)
    count.model(model)
    return Traffic(dict(count.links), count.chief)


class _Count:
    """Goes through the layers of a graph."""

    def __init__(self, batch: int, training: bool) -> None:
        self.links: dict[tuple[str, str], int] = collections.Counter()
        self.chief = ""
        self._batch = batch
        self._training = training
        # Of tensors of the graph, by their identity.
        self._lies: dict[int, Layout] = {}
        self._learns: dict[int, bool] = {}
        self._joined: set[int] = set()

    def model(self, model: Any, learns: bool = False) -> bool:
        """Counts a model; says whether anything in it or before it learns."""
        graph = getattr(model, "_functional", model)
        depths = graph._nodes_by_depth
        after = learns
        for depth in sorted(depths, reverse=True):
            for node in depths[depth]:
                if node.is_input:
                    for tensor in node.outputs:
                        self._learns[id(tensor)] = learns
                else:
                    after = self._node(node) or after
        for tensor in keras.tree.flatten(graph.outputs):
            self._join(tensor)
        return after

    def _node(self, node: Any) -> bool:
        layer, inputs = node.operation, node.input_tensors
        before = any(self._learns.get(id(x), False) for x in inputs)
        lies = None
        if isinstance(layer, Functional | keras.Sequential):
            for x in inputs:
                self._join(x)
            learns = self.model(layer, before)
        else:
            learns = before or bool(getattr(layer, "trainable_weights", ()))
            if isinstance(layer, ConvParallel) and layer.is_sharded:
                lies = self._convolution(layer, inputs[0], before)
            else:
                lies = self._other(layer, inputs)
        for tensor in node.outputs:
            self._learns[id(tensor)] = learns
            if lies is not None:
                self._lies[id(tensor)] = lies
        if lies is not None and not getattr(layer, "_in_region", True):
            for tensor in node.outputs:
                self._join(tensor)
                del self._lies[id(tensor)]
        return learns

    def _convolution(
        self, layer: ConvParallel, x: Any, before: bool
    ) -> Layout | None:
        """What goes in; how the feature maps lie."""
        layout = _layout_of(layer)
        self.chief = layout.owner
        width = layer._wire_dtype_for(layer.compute_dtype).size
        maps = layer._layout_of_maps(layer._layout or layout, x.shape)
        depthwise = getattr(layer, "depthwise_kernel", None)
        if depthwise is not None:
            own = depthwise._value.layout
            self._apart(x, own, layer, width, before)
            times = layer.depth_multiplier
            sizes = tuple(times * n for n in own.sizes)
            middle = dataclasses.replace(own, sizes=sizes)
            pixels = _pixels(layer.compute_output_shape(x.shape), layer)
            values = [self._batch * pixels * n for n in middle.sizes]
            learns = before or bool(layer.trainable_weights)
            self._gather(values, middle.devices, layout.devices, width, learns)
        elif "Depthwise" in type(layer).__name__:
            self._apart(x, layout, layer, width, before)
        else:
            lies = self._lies.get(id(x))
            if lies is None:
                values, sources = [self._values(x)], [layout.owner]
            else:
                values, sources = self._shards(x, lies), list(lies.devices)
            self._gather(values, sources, layout.devices, width, before)
        return maps

    def _other(self, layer: Any, inputs: Sequence[Any]) -> Layout | None:
        """A layer of plain Keras: on shards, or where they are joined."""
        call = vars(layer).get("call")
        rule = call.rule if isinstance(call, OnShards) else None
        expected = call.expected if isinstance(call, OnShards) else ()
        lies = [self._lies.get(id(x)) for x in inputs]
        known = [layout for layout in lies if layout is not None]
        as_expected = len(known) == len(lies) == len(expected) and all(
            a.matches(b) for a, b in zip(known, expected, strict=True)
        )
        output = None
        if rule is not None and as_expected:
            output = rule.output(layer, known, inputs[0].shape)
        if output is None:
            for x in inputs:
                self._join(x)
            return None
        if output.devices != (output.owner,):
            return output
        # Sums come to the chief, and their gradient returns.
        values = self._batch * layer.units
        width = tf.as_dtype(layer.compute_dtype).size
        devices = known[0].devices
        self._gather(
            [values] * len(devices), devices, (output.owner,), width, True
        )
        return None

    def _join(self, x: Any) -> None:
        """Sends shards to the chief, if that has not been done."""
        lies = self._lies.get(id(x))
        if lies is None or id(x) in self._joined:
            return
        self._joined.add(id(x))
        width = tf.as_dtype(lies.wire or x.dtype).size
        width = min(width, tf.as_dtype(x.dtype).size)
        values, learns = self._shards(x, lies), self._learns[id(x)]
        self._gather(values, lies.devices, (lies.owner,), width, learns)

    def _apart(
        self, x: Any, own: Layout, layer: Any, width: int, before: bool
    ) -> None:
        """Each device gets its channels, unless it has them."""
        layout = dataclasses.replace(own, axis=layer._channel_axis())
        lies = self._lies.get(id(x))
        if lies is not None and lies.matches(layout):
            return
        self._join(x)
        for device, values in zip(
            own.devices, self._shards(x, layout), strict=True
        ):
            self._gather([values], (own.owner,), (device,), width, before)

    def _gather(
        self,
        values: Sequence[int],
        sources: Sequence[str],
        targets: Sequence[str],
        width: int,
        returns: bool,
    ) -> None:
        """All values to each target; gradients return."""
        for source, count in zip(sources, values, strict=True):
            for target in set(targets) - {source}:
                self.links[source, target] += width * count
                if self._training and returns:
                    self.links[target, source] += width * count

    def _values(self, x: Any) -> int:
        return self._batch * math.prod(x.shape[1:])

    def _shards(self, x: Any, layout: Layout) -> list[int]:
        """Numbers in each shard."""
        whole = self._values(x)
        return [whole * n // sum(layout.sizes) for n in layout.sizes]


def _layout_of(layer: ConvParallel) -> Layout:
    """Of the weight that makes the feature maps."""
    found = [
        weight._value.layout
        for weight in layer.weights
        if isinstance(weight._value, ShardedVariable)
        and not weight.name.startswith("depthwise")
    ]
    return found[0]


def _pixels(shape: Sequence[int], layer: Any) -> int:
    last = layer.data_format == "channels_last"
    return math.prod(shape[1:-1] if last else shape[2:])
