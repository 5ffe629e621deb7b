"""Lets a Keras layer work on shards, or join them first."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat.keras import get_keras_mask
from tf_convpar._compat.keras import in_stateless_scope
from tf_convpar._compat.keras import set_keras_mask
from tf_convpar.layers import Attached
from tf_convpar.layers import ConvParallel
from tf_convpar.layers import Fusable
from tf_convpar.layers import is_merged
from tf_convpar.layers import takes_shards
from tf_convpar.ops import Epilogue
from tf_convpar.placement import Layout
from tf_convpar.placement import SampleLayout
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import device_type
from tf_convpar.sharding._lazy_shards import Recomputable
from tf_convpar.sharding._lazy_shards import in_one_pass
from tf_convpar.sharding.rules import OpCall
from tf_convpar.sharding.rules import Rule
from tf_convpar.sharding.rules import SampleRule
from tf_convpar.sharding.rules import each_alone


class OnShards(Attached):
    """Lets a layer work on shards of channels, by a rule.

    ```python
    attach(layer, OnShards(layer, rule, [layout]))
    ```

    Args:
        layer: A Keras layer, or an operation.
        rule: The rule by which it works on shards.
        expected: Layouts of its inputs. Shards that lie otherwise are joined.
            That happens to a layer that is called at several places.
        op_call: What computes the layer on a CPU; None for the `call` of its
            class.
        sole_user: Whether one other layer alone uses the result, which then
            may be computed together with it.
    """

    def __init__(
        self,
        layer: Any,
        rule: Rule,
        expected: Sequence[Layout],
        op_call: OpCall | None = None,
        sole_user: bool = False,
    ) -> None:
        self._layer = layer
        self.rule = rule
        self.expected = expected
        self.op_call = op_call
        self._sole_user = sole_user

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Does what the layer's `call` does, on shards if they are expected."""
        if args:
            other_arguments = args[1:]
            inputs = args[0] if isinstance(args[0], list | tuple) else args[:1]
            if not isinstance(self._layer, keras.layers.Layer):
                # Operations take several arguments, tensors and numbers.
                inputs = [x for x in args if isinstance(x, ShardedTensor)]
                other_arguments = (args,)
            if self._as_expected(inputs):
                result = in_one_pass(self._layer, inputs)
                if result is None:
                    result = self.rule.call(
                        self._layer, inputs, *other_arguments, **kwargs
                    )
                return result if self._sole_user else _as_it_is(result)
        args, kwargs = joined((args, kwargs))
        return type(self._layer).call(self._layer, *args, **kwargs)

    def _as_expected(self, inputs: Sequence[Any]) -> bool:
        if is_merged() or in_stateless_scope() or not takes_shards():
            return False
        return len(inputs) == len(self.expected) and all(
            isinstance(x, ShardedTensor) and x.layout.matches(layout)
            for x, layout in zip(inputs, self.expected, strict=True)
        )


class OnSamples(Attached):
    """Lets a layer work where the samples are; what lies elsewhere is sent.

    ```python
    attach(layer, OnSamples(layer, rule, layout))
    ```

    Args:
        layer: A Keras layer, or an operation.
        rule: The rule by which it works on samples.
        layout: Layout of the samples.
        first: Whether it does so even if all of its inputs are on the chief.
            If not, the layer's own `call` runs there.
        op_call: As for `OnShards`.
    """

    def __init__(
        self,
        layer: Any,
        rule: SampleRule,
        layout: SampleLayout,
        first: bool = False,
        op_call: OpCall | None = None,
        sole_user: bool = False,
    ) -> None:
        self._layer = layer
        self.rule = rule
        self.layout = layout
        self.first = first
        self.op_call = op_call
        self._sole_user = sole_user

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Does what the layer's `call` does, on samples if some are given."""
        inputs = keras.tree.flatten((args, kwargs))
        on_samples = self.first or any(
            isinstance(x, ShardedTensor) for x in inputs
        )
        as_plain = is_merged() or in_stateless_scope() or not takes_shards()
        if on_samples and not as_plain:
            result = in_one_pass(self._layer, inputs)
            if result is None:
                result = self._result(args, kwargs)
            return result if self._sole_user else _as_it_is(result)
        args, kwargs = joined((args, kwargs))
        return type(self._layer).call(self._layer, *args, **kwargs)

    def _result(self, args: Any, kwargs: Any) -> Any:
        result = self.rule.call(self._layer, self.layout, args, kwargs)
        on_cpus = all(device_type(d) == "CPU" for d in self.layout.devices)
        # In a graph, the result without an activation is not computed then.
        fuses = on_cpus and not tf.executing_eagerly()
        if not fuses or self.op_call is None or not self.op_call.activations:
            return result

        def run(epilogue: Epilogue) -> Any:
            return each_alone(
                *(self._layer, self.layout, args, kwargs),
                activation=epilogue.activation,
            )

        return Recomputable(result, Fusable(run, self.op_call.activations))


def _as_it_is(result: Any) -> Any:
    """A result that is not computed again with what follows."""
    if isinstance(result, Recomputable):
        return result.with_shards(result.shards)
    return result


class _RematerializedCall(Attached):
    """A layer's `rematerialized_call` that keeps activations of shards.

    In a `keras.RematScope` layers compute again for their gradients, by a
    function of TensorFlow that takes and returns tensors, all of one device.
    Shards are on several, so their activations are kept instead.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer

    def __call__(
        self, call: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Returns the function to call in the place of `call`."""
        if isinstance(call, OnShards | OnSamples) and takes_shards():
            return call
        kind = type(self._layer)
        return kind.rematerialized_call(self._layer, call, *args, **kwargs)


def attach(layer: Any, call: OnShards | OnSamples) -> None:
    """Lets a layer, or an operation, work on shards by a call of its own."""
    layer.call = call
    layer.rematerialized_call = _RematerializedCall(layer)


def works_on_shards(operation: Any) -> bool:
    """Whether an operation of a graph takes shards, or returns some."""
    if getattr(operation, "quantization_mode", None) is not None:
        return False  # Keras then calls another method than `call`.
    if isinstance(operation, ConvParallel):
        return operation.is_spread
    return isinstance(vars(operation).get("call"), Attached)


def joined(structure: Any) -> Any:
    """Joins all sharded tensors of a structure, and their Keras masks."""
    return keras.tree.map_structure(
        lambda x: (
            masked_as(x, x.joined()) if isinstance(x, ShardedTensor) else x
        ),
        structure,
    )


def masked_as(x: ShardedTensor, tensor: Any) -> Any:
    """Gives a tensor of the value of `x` the Keras mask of `x`."""
    mask = get_keras_mask(x)
    if mask is not None:
        set_keras_mask(tensor, joined(mask))
    return tensor
