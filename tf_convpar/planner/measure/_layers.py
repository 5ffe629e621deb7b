"""Measures how long a device takes for the layers of a model.

One function runs all layers, one after the other, and reads the clock between
them. It is traced once, for all devices and any number of samples. The time
that a call of a function on another machine takes is not measured.
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

from tf_convpar import ops
from tf_convpar import sharding
from tf_convpar._compat.keras import takes_training
from tf_convpar.placement import device_type
from tf_convpar.planner import _work_keys
from tf_convpar.planner._calibration import Work
from tf_convpar.planner.measure._clock import seconds_of
from tf_convpar.planner.measure._clock import settle
from tf_convpar.sharding import Call
from tf_convpar.sharding import Graph
from tf_convpar.sharding import works_on_samples

# Fractions of a layer's filters that are measured, besides 1.
PARTS = (0.25, 0.5)
# Seconds that one run of all layers may take. A run is repeated for a quarter
# of the second number.
_RUN_S = 5.0
_RUNS_S = 4.0
# Numbers of samples from which the time of more is estimated.
_FIRST = (2, 4)
_MOST_RUNS = 7
# Bytes: more than a core's share of the caches.
_CACHE = 32 << 20
# Value of inputs and weights, so small that sums of products stay finite.
_VALUE = 0.01


class Works:
    """Measures the layers of a model on devices of one type.

    ```python
    Works(graph).on("/device:CPU:0", batch=32)
    ```

    Args:
        graph: Graph of the model.
        device: Name of one of the devices that will be measured.
        algorithm: Algorithm of all convolutions; None for their own.
    """

    def __init__(
        self,
        graph: Graph,
        device: str = "/device:CPU:0",
        algorithm: str | None = None,
    ) -> None:
        self._graph = graph
        self._device = device
        # A traced function runs on every device of this kind, so it must not
        # name one: that device would be sent the maps of all the others.
        kind = device_type(device)
        self._kind = "" if kind == "CPU" else f"/device:{kind}:*"
        self._algorithm = algorithm
        self._calls: dict[str, Call] = {}
        for call in graph.calls:
            if call.layer is not None:
                self._calls.setdefault(_work_keys.key(graph, call), call)
        self._cut = [k for k, c in self._calls.items() if _has_filters(c)]
        self._whole = self._traced([(c, 1.0) for c in self._calls.values()])
        self._shard_keys = [
            k for k, c in self._calls.items() if _rule(c) is not None
        ]
        self._on_shards = self._traced(
            [(self._calls[k], 1.0) for k in self._shard_keys], on_shards=True
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
        *,
        curves: bool = True,
    ) -> dict[str, Work]:
        """The times of all layers on a device, by their keys.

        Args:
            device: Name of the device.
            batch: Samples of a step; no more are measured.
            report: Function that is called with the name of what is measured
                next.
            curves: Whether to measure fewer samples, parts of the filters, and
                layers as on shards, besides whole layers and the most samples.
        """
        most = self._most(device, batch, report)
        points = [most]
        if curves:
            points = sorted({max(1, most // 4), max(1, most // 2), most})
        times = {}
        for n in points:
            report(f"{device}: all layers, {n} samples")
            times[n] = self._medians(self._whole, device, n)
        parts = []
        cut = self._cut if curves else []
        shard_keys = self._shard_keys if curves else []
        for part, function in zip(PARTS, self._parts, strict=True):
            if cut:
                report(f"{device}: {part:.0%} of the filters")
                parts.append(self._medians(function, device, most))
        if shard_keys:
            report(f"{device}: on shards")
            shard_rows = self._medians(self._on_shards, device, most)
        works = {}
        for i, key in enumerate(self._calls):
            rows = np.array([times[n][i] for n in points])
            rows = np.maximum(rows, 1e-7)
            work = Work(
                tuple(points),
                tuple(map(float, rows[:, 0])),
                tuple(map(float, rows[:, 1])),
            )
            if key in cut:
                place = cut.index(key)
                ratios = np.array([p[place] for p in parts]) / rows[-1]
                work = Work(
                    work.samples,
                    work.forward,
                    work.backward,
                    (*PARTS, 1.0),
                    (*map(float, ratios[:, 0]), 1.0),
                    (*map(float, ratios[:, 1]), 1.0),
                )
            if key in shard_keys:
                ratios = shard_rows[shard_keys.index(key)] / rows[-1]
                work = dataclasses.replace(
                    work, on_shards=tuple(map(float, ratios))
                )
            works[key] = work
        return works

    def _most(
        self, device: str, batch: int, report: Callable[[str], None]
    ) -> int:
        """Number of samples that take about `_RUN_S`, at most the batch."""
        few, more = (min(n, batch) for n in _FIRST)
        # The first run allocates memory, and makes what layers keep.
        report(f"{device}: all layers, {few} samples")
        self._run(self._whole, device, few)
        if device_type(device) != "CPU":
            settle(lambda: self._run(self._whole, device, few))
        less = seconds_of(lambda: self._run(self._whole, device, few))
        if more == few or less > _RUN_S:
            return few
        report(f"{device}: all layers, {more} samples")
        seconds = seconds_of(lambda: self._run(self._whole, device, more))
        each = max(seconds - less, 1e-6) / (more - few)
        return max(more, min(batch, int(more + (_RUN_S - seconds) / each)))

    def _medians(self, function: Any, device: str, samples: int) -> np.ndarray:
        """Seconds forward and backward, a row for each layer.

        They are medians, or the minimum if there is time for two runs only.
        """
        runs: list[np.ndarray] = []
        begin = time.perf_counter()
        while len(runs) < 2 or (
            len(runs) < _MOST_RUNS and time.perf_counter() - begin < _RUNS_S / 4
        ):
            runs.append(self._run(function, device, samples))
        if len(runs) == 2:
            return np.minimum(*runs)
        return np.median(runs, axis=0)

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
                on_one = on_shards or self._is_fused(call)
                call_layer = self._on_one if on_one else self._called
                self._timed(
                    call, part, samples, value, stamps, used, call_layer
                )
            # TensorFlow prunes what nobody reads.
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
        call_layer: Callable[..., Any],
    ) -> None:
        """Adds a call, and four readings of the clock.

        Two are around the forward pass, and two around the backward pass.
        """

        def stamp(after: Sequence[tf.Tensor]) -> tf.Tensor:
            used.extend(after)
            with tf.control_dependencies(self._known_after(after)):
                stamps.append(tf.timestamp())
            return stamps[-1]

        def fill(shape: Sequence[Any], dtype: Any) -> tf.Tensor:
            if tf.as_dtype(dtype) == tf.string:
                return tf.fill(shape, "")
            # `value` is an argument, as constants are computed beforehand.
            return tf.fill(shape, tf.cast(value, dtype))

        with tf.control_dependencies(stamps[-1:]):
            inputs = [
                fill(sharding.shape_for(x, samples), x.dtype)
                for x in call.node.input_tensors
            ]
            inputs = [
                tf.ensure_shape(x, sharding.shape_for(k, None))
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
            outputs = keras.tree.flatten(call_layer(call, inputs, state))
        forward = stamp(outputs)
        with tf.control_dependencies([forward]):
            # In a step all later layers run before this one's gradients are
            # computed, whose inputs are then no longer in a cache.
            others = tf.reduce_sum(fill([_CACHE // 4], tf.float32))
            used.append(others)
        with tf.control_dependencies([others]):
            outputs = [y for y in outputs if y.dtype.is_floating]
            upstream = [fill(tf.shape(y), y.dtype) for y in outputs]
        again = stamp(upstream or [forward])
        with tf.control_dependencies([again]):
            gradients: list[Any] = []
            if sources and outputs:
                upstream = [tf.identity(dy) for dy in upstream]
                gradients = tape.gradient(outputs, sources, upstream)
        stamp([g for g in gradients if g is not None] or [again])

    def _is_fused(self, call: Call) -> bool:
        """Whether this package's ops compute a layer that is on the chief."""
        normalizes = isinstance(call.layer, keras.layers.BatchNormalization)
        return bool(
            self._fuses()
            and normalizes
            and _rule(call) is not None
            and sharding.fuses(
                call.layer, [x.shape for x in call.node.input_tensors]
            )
        )

    def _fuses(self) -> bool:
        """Whether ops of this package compute layers of Keras."""
        on_cpu = device_type(self._device) == "CPU"
        return self._algorithm == "auto" and on_cpu and ops.load()

    def _known_after(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Tensors that are known once the given ones are computed."""
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
        """Calls a layer as devices run it, with these weights."""
        layer = call.layer
        if call.splits:
            values = {variable.name: value for variable, value in state}
            overrides = (
                {"algorithm": self._algorithm} if self._algorithm else {}
            )
            twin: Any = sharding.planned(layer, **overrides)
            y = inputs[0]
            for compute, names in twin._stages_on_shards():
                y = twin._run_shard(
                    compute,
                    y,
                    *(values[name] for name in names),
                    device=self._device,
                    first=0,
                )
            return twin._activated_on(self._kind, y)
        input_values = {
            id(x): value
            for x, value in zip(call.node.input_tensors, inputs, strict=True)
        }
        args, kwargs = keras.tree.map_structure(
            lambda x: input_values.get(id(x), x),
            (call.node.arguments.args, call.node.arguments.kwargs),
        )
        if takes_training(layer):
            kwargs = {**kwargs, "training": True}
        with keras.StatelessScope(
            state, collect_losses=True, initialize_variables=False
        ):
            shapes = [x.shape for x in call.node.input_tensors]
            op_call = sharding.op_call_of(layer, shapes)
            if op_call is not None and self._fuses():
                return op_call(layer, *args, **kwargs)
            return type(layer).call(layer, *args, **kwargs)

    def _on_one(
        self, call: Call, inputs: Sequence[tf.Tensor], state: Any
    ) -> Any:
        """Computes a layer as its rule does on shards, with these weights."""
        values = {variable.name: value for variable, value in state}
        return _rule(call).on_one(call.layer, inputs[0], values, self._kind)


def _rule(call: Call) -> Any:
    """The rule of a layer that is computed otherwise on shards, or None."""
    rule = None if call.splits else works_on_samples(call.node)
    return rule if rule is not None and rule.computes else None


def _has_filters(call: Call) -> bool:
    """Whether a call's work is in proportion to its filters."""
    return call.splits and hasattr(call.layer, "filters")


def _part_of(call: Call, variable: Any, part: float) -> list[int]:
    """The shape of a layer's weight with a part of its filters only."""
    shape = list(variable.shape)
    if part < 1:
        twin: Any = sharding.planned(call.layer)
        axis = twin._cut_axes.get(variable.name)
        if axis is not None and variable.name != "depthwise_kernel":
            shape[axis] = max(1, round(shape[axis] * part))
    return shape
