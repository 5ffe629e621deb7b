"""Functions that run layers and read the clock between them.

One function runs all layers, one after the other. It is traced once, for all
devices of one type and any number of samples. The time that a call of a
function on another machine takes is not measured.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar import ops
from tf_convpar import sharding
from tf_convpar._compat.keras import takes_training
from tf_convpar.placement import device_type
from tf_convpar.sharding import Call
from tf_convpar.sharding import works_on_samples

# Value of inputs and weights, so small that sums of products stay finite.
VALUE = 0.01
# Bytes: more than a core's share of the caches.
_CACHE = 32 << 20


class ClockedLayers:
    """Traces layers with the clock, for devices of one type.

    ```python
    run = ClockedLayers("/device:CPU:0").traced([(call, 1.0)])
    times, _ = run(tf.constant(32), tf.constant(VALUE))
    ```

    Args:
        device: Name of one of the devices.
        algorithm: Algorithm of all convolutions; None for their own.
    """

    def __init__(self, device: str, algorithm: str | None = None) -> None:
        self._device = device
        # A traced function runs on every device of this kind, so it must not
        # name one: that device would be sent the maps of all the others.
        kind = device_type(device)
        self._kind = "" if kind == "CPU" else f"/device:{kind}:*"
        self._algorithm = algorithm

    def traced(
        self, calls: Sequence[tuple[Call, float]], on_shards: bool = False
    ) -> Any:
        """The function of some layers; None if there are none.

        It takes a number of samples, and `VALUE`. It returns four times in
        seconds for each layer, `(layers, 4)`, and numbers of no use.

        Args:
            calls: Calls of layers, and the fraction of its filters that each
                computes.
            on_shards: Whether layers are computed as on shards.
        """

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
            and rule_of(call) is not None
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
            y, stages = inputs[0], twin.stages()
            for stage in stages:
                weights = [values[name] for name in stage.names]
                epilogue = stage.with_activation(self._device)
                if stage is not stages[-1]:
                    epilogue = None
                y = stage.here(y, weights, self._device, epilogue=epilogue)
            return stages[-1].activated(self._kind, y)
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
        return rule_of(call).on_one(call.layer, inputs[0], values, self._kind)


def rule_of(call: Call) -> Any:
    """The rule of a layer that is computed otherwise on shards, or None."""
    rule = None if call.splits else works_on_samples(call.node)
    return rule if rule is not None and rule.computes else None


def _part_of(call: Call, variable: Any, part: float) -> list[int]:
    """The shape of a layer's weight with a part of its filters only."""
    shape = list(variable.shape)
    if part < 1:
        twin: Any = sharding.planned(call.layer)
        axis = twin._cut_axes.get(variable.name)
        if axis is not None and variable.name != "depthwise_kernel":
            shape[axis] = max(1, round(shape[axis] * part))
    return shape
