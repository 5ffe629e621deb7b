"""`ConvParallelStrategy`: one replica, many devices."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

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
from tf_convpar.plans import load
from tf_convpar.strategy import cluster as cluster_lib
from tf_convpar.strategy import devices as devices_lib
from tf_convpar.strategy import graphs
from tf_convpar.strategy import keras_training
from tf_convpar.strategy import memory
from tf_convpar.strategy import server

WIRE_DTYPES = ("float32", "bfloat16", "float16")


class ConvParallelStrategy(tf.distribute.Strategy):
    """Trains one Keras model on many unequal devices.

    ```python
    strategy = convpar.ConvParallelStrategy()  # the cluster of TF_CONFIG
    with strategy.scope():
        model = keras.Sequential(
            [
                convpar.ConvParallel2D(500, 5, shards=(3, 1, 1)),
                keras.layers.Flatten(),
                keras.layers.Dense(10),
            ]
        )
        model.compile("adam", loss)
    model.fit(x, y)
    ```

    There is one replica: every step sees the whole batch, and the numbers are
    those of one device. `ConvParallel` layers spread their kernels over
    `devices`. All else runs on `chief_device`, but for what
    `convpar.parallelize` leaves where the shards are.

    Args:
        cluster_resolver: Any `tf.distribute.cluster_resolver`; None for
            TF_CONFIG or, if that is not set, for the step that Slurm's `srun`
            has started, or else for this machine alone. The other tasks must be
            running `convpar worker`; under `srun` all run this program, and
            those that are not the chief serve here until it ends.
        devices: Names of the devices to compute convolutions on, in the order
            that `shards=` refers to. None for every GPU of the cluster and
            the CPU of tasks without one; on a machine alone, for its GPUs and
            CPUs. `"CPU:1"` names a device of this process.
        plan: Kernels per device for each layer: a mapping from layer names to
            counts or weights, such as `tf_convpar.plan` returns; the path of
            a plan's JSON file; or `"auto"`, which measures and plans each
            layer when it is built. A layer's own `shards=` goes first.
        wire_dtype: The dtype in which feature maps and their gradients travel
            between devices: `"float32"`, `"bfloat16"` or `"float16"`; None for
            the dtype in which the layer computes.
        connect_timeout: Seconds to wait for the other tasks.
        chief_device: Name of the device for all that is not split; None for
            the first of `devices` that is this program's own, or its first.
        min_workers: Number of workers with which to begin, if the others of
            the cluster have not answered in `connect_timeout`; None for all.
            `callbacks.Elastic` takes in who comes later.

    Raises:
        ValueError: TF_CONFIG is malformed, a device or dtype is unknown, or
            this task is a worker.
        TimeoutError: A task did not answer; its address is in the message.
    """

    def __init__(
        self,
        cluster_resolver: Any = None,
        devices: Sequence[str] | None = None,
        plan: Mapping[str, Sequence[float]] | str | None = None,
        wire_dtype: str | None = None,
        connect_timeout: float = 60.0,
        chief_device: str | None = None,
        min_workers: int | None = None,
    ) -> None:
        check_wire_dtype(wire_dtype)
        plan, automatic = _read_plan(plan)
        memory.keep()
        cluster = cluster_lib.resolve(cluster_resolver)
        if cluster is not None and cluster.one_program and not cluster.is_chief:
            server.serve(cluster)
        if cluster is not None:
            cluster_lib.connect(cluster, connect_timeout, min_workers)
        names = (
            devices_lib.default_devices()
            if devices is None
            else devices_lib.check(devices)
        )
        self.devices = tuple(names)
        self._all = devices is None
        self.chief_device = _chief_device(names, chief_device)
        self.plan = dict(plan)
        self._automatic: Any = None
        self.wire_dtype = wire_dtype
        self.cluster = cluster
        super().__init__(_Extended(self, self.chief_device))
        self._plans = automatic
        if automatic:
            self.planner()

    def planner(self) -> Any:
        """The object that measures and plans for this strategy, made once."""
        if _plans_layers is None:
            raise RuntimeError(
                "Expected the planner to be there, for plan='auto'. Received "
                "none: import this class as tf_convpar.ConvParallelStrategy."
            )
        self._automatic = self._automatic or _plans_layers(self)
        return self._automatic

    def change_devices(self, devices: Sequence[str]) -> None:
        """Makes these the devices, as workers leave and return.

        Models that exist stay where they are.
        """
        self.devices = tuple(devices_lib.check(devices))
        if self._automatic is not None:
            self._automatic.devices_changed()

    def new_devices(self) -> list[str]:
        """Devices of tasks that have joined, if it was to use all there are."""
        if not self._all:
            return []
        found = devices_lib.default_devices()
        return [name for name in found if name not in self.devices]

    @property
    def plans_layers(self) -> bool:
        """Whether layers are planned when they are built: `plan="auto"`."""
        return self._plans

    def planned(self, layer: Any, input_shape: Sequence[int | None]) -> Any:
        """The plan's entry for a layer.

        Args:
            layer: A layer that is about to be built.
            input_shape: Shape of its input, with the batch.

        Returns:
            Counts or weights per device, or `"samples"`, or a mapping that has
            `"split"` and `"shards"`; None if there is no plan for the layer.
        """
        if not self._plans or layer.name in self.plan:
            return self.plan.get(layer.name)
        found: Sequence[float] | None = self.planner().counts(
            layer, input_shape
        )
        if found is not None:
            self.plan[layer.name] = found
        return found


# Given a strategy, makes the object that plans its layers for `plan="auto"`.
_plans_layers: Callable[[ConvParallelStrategy], Any] | None = None


def plans_layers(planner: Any) -> Any:
    """Decorates the class whose instances plan the layers of a strategy.

    That class measures on the devices of a strategy, so it imports this
    module. It cannot be imported here, and hands itself over instead.
    """
    global _plans_layers
    _plans_layers = planner
    return planner


def _chief_device(names: Sequence[str], given: str | None) -> str:
    """The device for all that is not split."""
    if given is not None:
        return devices_lib.check([given])[0]
    here = f"{devices_lib.here_prefix()}/"
    own = [name for name in names if name.startswith(here)]
    return (own or devices_lib.available())[0]


def _read_plan(
    plan: Mapping[str, Sequence[float]] | str | None,
) -> tuple[Mapping[str, Sequence[float]], bool]:
    """The entry of each layer, and whether layers are planned when built."""
    if plan is None or plan == "auto":
        return {}, plan == "auto"
    if isinstance(plan, Mapping):
        return plan, False
    if isinstance(plan, str | os.PathLike):
        return load(plan), False
    raise ValueError(
        "Expected `plan` to map layer names to kernels per device, such as "
        "{'conv2d': (3, 1)}, or to be the path of a plan's file, or 'auto'. "
        f"Received: plan={plan!r}."
    )


def check_wire_dtype(wire_dtype: str | None) -> None:
    """Raises ValueError unless feature maps can travel in this dtype."""
    if wire_dtype is not None and wire_dtype not in WIRE_DTYPES:
        raise ValueError(
            f"Expected `wire_dtype` to be one of {WIRE_DTYPES} or None. "
            f"Received: wire_dtype={wire_dtype!r}."
        )


class _Extended(OneDeviceExtended):
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
        """Within it, slots are made beside a variable, in any scope."""
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
        # answer is kept.
        cells = getattr(fn, "__closure__", None) or ()
        key = (
            getattr(fn, "__code__", fn),
            tuple(type(cell.cell_contents) for cell in cells),
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


keras_training.wrap(ConvParallelStrategy)
