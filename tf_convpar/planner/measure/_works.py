"""How long a device takes for the layers of a model.

One function runs all of them, one after the other, and reads the clock in
between: it is traced once for all devices, of any number of samples, and what
it costs to call a function on another machine is not in the times.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_convpar.placement import device_type
from tf_convpar.planner import _works
from tf_convpar.planner._calibration import Work
from tf_convpar.planner._graph import Call
from tf_convpar.planner._graph import Graph
from tf_convpar.sharding import _twins
from tf_convpar.sharding._where import works_on_samples

# Of a layer's filters, beside all of them.
PARTS = (0.25, 0.5)
# For one run of all layers, and for all runs of one kind.
_RUN_S = 5.0
_RUNS_S = 4.0
# Samples by which it is found how many fit.
_FIRST = (2, 4)
_MOST_RUNS = 7
# Bytes that are more than caches hold of a core's share.
_CACHE = 32 << 20
# Small enough for sums of products to stay finite.
_VALUE = 0.01


class Works:
    """The layers of a model, to be measured on devices.

    ```python
    Works(graph).on("/device:CPU:0", batch=32)
    ```

    Args:
        graph: The model's.
        device: One of those that will be measured: all are of its type.
        algorithm: Of all convolutions; None for their own.
    """

    def __init__(
        self,
        graph: Graph,
        device: str = "/device:CPU:0",
        algorithm: str | None = None,
    ) -> None:
        self._graph = graph
        self._device = device
        self._algorithm = algorithm
        self._calls: dict[str, Call] = {}
        for call in graph.calls:
            if call.layer is not None:
                self._calls.setdefault(_works.key(graph, call), call)
        self._cut = [k for k, c in self._calls.items() if _has_filters(c)]
        self._whole = self._traced([(c, 1.0) for c in self._calls.values()])
        self._own = [k for k, c in self._calls.items() if _rule(c) is not None]
        self._on_shards = self._traced(
            [(self._calls[k], 1.0) for k in self._own], on_shards=True
        )
        self._parts = [
            self._traced([(self._calls[k], part) for k in self._cut])
            for part in PARTS
        ]

    def on(
        self,
        device: str,
        batch: int,
        report: Callable[[str], None] = lambda name: None,
    ) -> dict[str, Work]:
        """The times of all layers on a device, by their keys.

        Args:
            device: Its name.
            batch: Samples of a step: no more are measured.
            report: Called with what is measured next.
        """
        most = self._most(device, batch, report)
        points = sorted({max(1, most // 4), max(1, most // 2), most})
        times = {}
        for n in points:
            report(f"{device}: all layers, {n} samples")
            times[n] = self._medians(self._whole, device, n)
        parts = []
        for part, function in zip(PARTS, self._parts, strict=True):
            if self._cut:
                report(f"{device}: {part:.0%} of the filters")
                parts.append(self._medians(function, device, most))
        if self._own:
            report(f"{device}: on shards")
            own_rows = self._medians(self._on_shards, device, most)
        found = {}
        for i, key in enumerate(self._calls):
            rows = np.array([times[n][i] for n in points])
            rows = np.maximum(rows, 1e-7)
            own = Work(
                tuple(points),
                tuple(map(float, rows[:, 0])),
                tuple(map(float, rows[:, 1])),
            )
            if key in self._cut:
                at = self._cut.index(key)
                ratios = np.array([p[at] for p in parts]) / rows[-1]
                own = Work(
                    own.samples,
                    own.forward,
                    own.backward,
                    (*PARTS, 1.0),
                    (*map(float, ratios[:, 0]), 1.0),
                    (*map(float, ratios[:, 1]), 1.0),
                )
            if key in self._own:
                ratios = own_rows[self._own.index(key)] / rows[-1]
                own = dataclasses.replace(
                    own, on_shards=tuple(map(float, ratios))
                )
            found[key] = own
        return found

    def _most(
        self, device: str, batch: int, report: Callable[[str], None]
    ) -> int:
        """How many samples take about the time of a run."""
        few, more = (min(n, batch) for n in _FIRST)
        # The first run allocates memory, and makes what is kept of layers.
        report(f"{device}: all layers, {few} samples")
        self._run(self._whole, device, few)
        less = _seconds(lambda: self._run(self._whole, device, few))
        if more == few or less > _RUN_S:
            return few
        report(f"{device}: all layers, {more} samples")
        seconds = _seconds(lambda: self._run(self._whole, device, more))
        each = max(seconds - less, 1e-6) / (more - few)
        return max(more, min(batch, int(more + (_RUN_S - seconds) / each)))

    def _medians(self, function: Any, device: str, samples: int) -> np.ndarray:
        """Seconds forward and backward, a row for each layer."""
        found: list[np.ndarray] = []
        begin = time.perf_counter()
        while len(found) < 2 or (
            len(found) < _MOST_RUNS
            and time.perf_counter() - begin < _RUNS_S / 4
        ):
            found.append(self._run(function, device, samples))
        if len(found) == 2:
            return np.minimum(*found)
        return np.median(found, axis=0)

    def _run(self, function: Any, device: str, samples: int) -> np.ndarray:
        with tf.device(device):
            stamps, _ = function(tf.constant(samples), tf.constant(_VALUE))
        stamps = stamps.numpy()
        return np.stack(
            [stamps[:, 1] - stamps[:, 0], stamps[:, 3] - stamps[:, 2]], axis=1
        )

    def _traced(
        self, calls: Sequence[tuple[Call, float]], on_shards: bool = False
    ) -> Any:
        def run(samples: tf.Tensor, value: tf.Tensor) -> Any:
            stamps: list[tf.Tensor] = []
            used: list[tf.Tensor] = []
            for call, part in calls:
                called = self._on_one if on_shards else self._called
                self._timed(call, part, samples, value, stamps, used, called)
            # What nobody reads would be left out of the graph.
            numbers = [
                tf.cast(tf.reshape(x, [-1])[:1], tf.float32)
                for x in used
                if x.dtype != tf.string
            ]
            return tf.reshape(tf.stack(stamps), [-1, 4]), tf.concat(numbers, 0)

        if not calls:
            return None
        return tf.function(run, autograph=False).get_concrete_function(
            tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.float32)
        )

    def _timed(
        self,
        call: Call,
        part: float,
        samples: tf.Tensor,
        value: tf.Tensor,
        stamps: list[tf.Tensor],
        used: list[tf.Tensor],
        called: Callable[..., Any],
    ) -> None:
        """Adds four readings of the clock: around forward, and backward."""

        def stamp(after: Sequence[tf.Tensor]) -> tf.Tensor:
            used.extend(after)
            with tf.control_dependencies(self._there(after)):
                stamps.append(tf.timestamp())
            return stamps[-1]

        def fill(shape: Sequence[Any], dtype: Any) -> tf.Tensor:
            if tf.as_dtype(dtype) == tf.string:
                return tf.fill(shape, "")
            # Of an argument: constants would be computed beforehand.
            return tf.fill(shape, tf.cast(value, dtype))

        with tf.control_dependencies(stamps[-1:]):
            inputs = [
                fill([samples, *x.shape[1:]], x.dtype)
                for x in call.node.input_tensors
            ]
            inputs = [
                tf.ensure_shape(x, [None, *k.shape[1:]])
                for x, k in zip(inputs, call.node.input_tensors, strict=True)
            ]
            variables = list(getattr(call.layer, "variables", ()))
            weights = [
                fill(_part_of(call, v, part), v.dtype) for v in variables
            ]
        begin = stamp([*inputs, *weights])
        learns = [
            w
            for w, v in zip(weights, variables, strict=True)
            if v.trainable and getattr(call.layer, "trainable", True)
        ]
        sources = [
            x for x in inputs if call.before and x.dtype.is_floating
        ] + learns
        with tf.control_dependencies([begin]), tf.GradientTape() as tape:
            tape.watch(sources)
            state = list(zip(variables, weights, strict=True))
            outputs = keras.tree.flatten(called(call, inputs, state))
        forward = stamp(outputs)
        with tf.control_dependencies([forward]):
            # In a step all later layers run before this one's gradients are
            # computed: what they read is no longer in a cache.
            others = tf.reduce_sum(fill([_CACHE // 4], tf.float32))
            used.append(others)
        with tf.control_dependencies([others]):
            outputs = [y for y in outputs if y.dtype.is_floating]
            upstream = [fill(tf.shape(y), y.dtype) for y in outputs]
        again = stamp(upstream or [forward])
        with tf.control_dependencies([again]):
            found: list[Any] = []
            if sources and outputs:
                upstream = [tf.identity(dy) for dy in upstream]
                found = tape.gradient(outputs, sources, upstream)
        stamp([g for g in found if g is not None] or [again])

    def _there(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """What is known only when tensors have been computed."""
        if device_type(self._device) == "CPU":
            return list(tensors)
        # A GPU computes while the program goes on, until a number of the
        # result is read.
        with tf.device("/device:CPU:0"):
            return [
                tf.identity(tf.reshape(x, [-1])[:1])
                for x in map(tf.convert_to_tensor, tensors)
            ]

    def _called(
        self, call: Call, inputs: Sequence[tf.Tensor], state: Any
    ) -> Any:
        """A layer's call as devices run it, with these weights."""
        layer = call.layer
        if call.splits:
            values = {variable.name: value for variable, value in state}
            own = {"algorithm": self._algorithm} if self._algorithm else {}
            twin: Any = _twins.planned(layer, **own)
            compute, names = twin._all_filters()
            y = twin._run_shard(
                compute,
                inputs[0],
                *(values[name] for name in names),
                device=self._device,
                first=0,
            )
            return y if layer.activation is None else layer.activation(y)
        given = {
            id(x): value
            for x, value in zip(call.node.input_tensors, inputs, strict=True)
        }
        args, kwargs = keras.tree.map_structure(
            lambda x: given.get(id(x), x),
            (call.node.arguments.args, call.node.arguments.kwargs),
        )
        if getattr(layer, "_call_has_training_arg", False):
            kwargs = {**kwargs, "training": True}
        with keras.StatelessScope(
            state, collect_losses=True, initialize_variables=False
        ):
            return type(layer).call(layer, *args, **kwargs)

    def _on_one(
        self, call: Call, inputs: Sequence[tf.Tensor], state: Any
    ) -> Any:
        """What a device computes of a layer on shards, with these weights."""
        values = {variable.name: value for variable, value in state}
        return _rule(call).on_one(call.layer, inputs[0], values, self._device)


def _rule(call: Call) -> Any:
    """Of a layer that is computed otherwise on shards; else None."""
    rule = None if call.splits else works_on_samples(call.node)
    return rule if rule is not None and rule.computes else None


def _seconds(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def _has_filters(call: Call) -> bool:
    """Whether its work shrinks with the number of filters alone."""
    return call.splits and hasattr(call.layer, "filters")


def _part_of(call: Call, variable: Any, part: float) -> list[int]:
    """The shape of a part of a weight."""
    shape = list(variable.shape)
    if part < 1:
        twin: Any = _twins.planned(call.layer)
        axis = twin._cut_axes.get(variable.name)
        if axis is not None and variable.name != "depthwise_kernel":
            shape[axis] = max(1, round(shape[axis] * part))
    return shape
