"""The strategy's methods that TensorFlow calls: variables, steps, updates."""

from __future__ import annotations

import contextlib
import inspect
import warnings
import weakref
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat.tensorflow import OneDeviceExtended
from tf_convpar._compat.tensorflow import OneDeviceReplicaContext
from tf_convpar._compat.tensorflow import UpdateContext
from tf_convpar._compat.tensorflow import unique_id
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import ShardedVariable
from tf_convpar.placement import is_elementwise
from tf_convpar.placement import pick
from tf_convpar.placement import shard_scope
from tf_convpar.placement import sharded_like
from tf_convpar.placement import split
from tf_convpar.strategy import graphs


class Extended(OneDeviceExtended):
    """Puts slots beside their shard, and updates each shard where it is.

    The parent is that of `OneDeviceStrategy`, because Keras sees one replica:
    the whole batch goes through one model.
    """

    def __init__(self, strategy: tf.distribute.Strategy, device: str) -> None:
        super().__init__(strategy, device)
        self._elementwise: dict[Any, bool] = {}

    def _experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: Any
    ) -> tf.data.Dataset:
        """The whole dataset, as there is one replica.

        The parent's iterator has a thread that fetches what comes next. It may
        still run when the iterator is gone, as at the beginning of each `fit`,
        and then the process crashed once in a while.
        """
        del options
        return dataset

    def _distribute_datasets_from_function(
        self, dataset_fn: Callable[..., Any], options: Any
    ) -> tf.data.Dataset:
        del options
        return dataset_fn(tf.distribute.InputContext())

    def _create_variable(
        self, next_creator: Callable[..., Any], **kwargs: Any
    ) -> Any:
        beside = kwargs.pop("colocate_with", None)
        if isinstance(beside, ShardedVariable):
            return sharded_like(beside, **kwargs)
        device = getattr(beside, "device", None) or self._device
        with tf.device(device):
            return next_creator(**kwargs)

    @contextlib.contextmanager
    def colocate_vars_with(self, colocate_with_variable: Any) -> Iterator[None]:
        """Context in which slots are made beside a variable, in any scope."""
        strategy = self._container_strategy()
        with contextlib.ExitStack() as stack:
            if tf.distribute.get_strategy() is not strategy:
                stack.enter_context(strategy.scope())
            stack.enter_context(
                super().colocate_vars_with(colocate_with_variable)
            )
            yield

    def _validate_colocate_with_variable(self, variable: Any) -> None:
        """Lets slots stand beside any variable, sharded ones included."""

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        graphs.note(fn)
        unused = self._container_strategy().unused()
        if unused:
            warnings.warn(unused, stacklevel=2)
        with self.replica():
            return fn(*args, **kwargs)

    @contextlib.contextmanager
    def replica(self) -> Iterator[None]:
        """Runs the code within it as the one replica, wherever it is entered.

        It may be entered in `strategy.run`, where it changes nothing, in the
        strategy's scope, or outside of that.
        """
        strategy = self._container_strategy()
        current = tf.distribute.get_replica_context()
        with contextlib.ExitStack() as stack:
            if tf.distribute.get_strategy() is not strategy:
                stack.enter_context(strategy.scope())
                current = None
            if current is None:
                if tf.executing_eagerly():
                    stack.enter_context(tf.device(self._device))
                else:
                    graph = tf.compat.v1.get_default_graph()
                    stack.enter_context(graph.device(self._place))
                stack.enter_context(_Replica(strategy))
            yield

    def _place(self, op: tf.Operation) -> str:
        """The device of an op of a traced step: the chief's by default.

        If one kernel is used twice (a shared layer, a regularizer), the tape
        adds its gradients with an `AddN` of its own. That op goes where all
        its terms are; otherwise every term would travel to the chief.
        """
        if op.type == "AddN":
            places = {term.op.device for term in op.inputs}
            if len(places) == 1 and not op.device:
                return places.pop() or self._device
        chief = tf.DeviceSpec.from_string(self._device)
        return chief.make_merged_spec(
            tf.DeviceSpec.from_string(op.device)
        ).to_string()

    def _update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Any,
        kwargs: Any,
        group: bool,
    ) -> Any:
        if not isinstance(var, ShardedVariable):
            device = getattr(var, "device", None) or self._device
            with tf.device(device), UpdateContext(device):
                return self._grouped(fn(var, *args, **kwargs), group)
        args = [self._as_shards(arg, var) for arg in args]
        if kwargs or not self._is_elementwise(fn, var, args):
            args = [
                tf.convert_to_tensor(a) if isinstance(a, ShardedTensor) else a
                for a in args
            ]
            with tf.device(self._device), _updating(self._device):
                return self._grouped(fn(var, *args, **kwargs), group)
        for index, device in enumerate(var.layout.devices):
            with tf.device(device), _updating(device), shard_scope(index):
                fn(var, *(pick(arg, index) for arg in args))
        return self._grouped(None, group)

    def _as_shards(self, arg: Any, var: ShardedVariable) -> Any:
        """Cuts a dense gradient of a sharded kernel, once and on the owner.

        Other arguments of an update are returned as they are.
        """
        if (
            isinstance(arg, tf.Tensor)
            and arg.shape.rank
            and arg.shape == var.shape
        ):
            return ShardedTensor(split(arg, var.layout), var.layout)
        return arg

    def _is_elementwise(
        self, fn: Callable[..., Any], var: ShardedVariable, args: Sequence[Any]
    ) -> bool:
        if not tf.executing_eagerly():
            return is_elementwise(fn, var, args)
        # An eager program comes here in every step, with the same code, so the
        # answer is kept, for each optimizer. TensorFlow wraps all updates in
        # the same code.
        code = inspect.unwrap(fn)
        cells = getattr(code, "__closure__", None) or ()
        key = (
            getattr(code, "__code__", code),
            tuple(_cache_key(cell.cell_contents) for cell in cells),
            unique_id(var),
        )
        if key not in self._elementwise:
            self._elementwise[key] = is_elementwise(fn, var, args)
        return self._elementwise[key]

    def _grouped(self, result: Any, group: bool) -> Any:
        return (
            result
            if group
            else tf.nest.map_structure(self._local_results, result)
        )


def _cache_key(value: Any) -> Any:
    """The part of a cache key for a closure's value: optimizer or type."""
    if isinstance(value, keras.optimizers.Optimizer):
        return weakref.ref(value)
    return type(value)


@contextlib.contextmanager
def _updating(device: str) -> Iterator[None]:
    with UpdateContext(device):
        yield


class _Replica(OneDeviceReplicaContext):
    """The one replica, whose all-reduce has nothing to do.

    TensorFlow's own would pass every gradient through an `IdentityN` on the
    chief: all kernel gradients would cross the wire and back.
    """

    def all_reduce(
        self, reduce_op: Any, value: Any, options: Any = None
    ) -> Any:
        return value
