"""`ConvParallelStrategy`: one replica, many devices."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar.cluster import error_hints
from tf_convpar.cluster import joining
from tf_convpar.cluster import memory
from tf_convpar.cluster import server
from tf_convpar.machines import short
from tf_convpar.plans import CHIEF
from tf_convpar.plans import ByLayer
from tf_convpar.strategy import arguments
from tf_convpar.strategy import devices as devices_lib
from tf_convpar.strategy import keras_training
from tf_convpar.strategy.extended import Extended


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
        plan: Kernels per device for each layer: a mapping from layer names,
            or regular expressions (`re.fullmatch`), to counts or weights, such
            as `tf_convpar.plan` returns; the path of a plan's JSON file; or
            `"auto"`, which measures and plans each layer when it is built. A
            layer's own `shards=` goes first. A key that stands for no layer
            is warned of.
        wire_dtype: The dtype in which feature maps and their gradients travel
            between devices: `"float32"`, `"bfloat16"` or `"float16"`; None for
            the dtype in which the layer computes.
        connect_timeout: Seconds to wait for the other tasks.
        chief_device: Name of the device for all that is not split; None for
            the first of `devices` that is this program's own, or its first.
        min_workers: Number of workers with which to begin, if the others of
            the cluster have not answered in `connect_timeout`; None for all.
            The chief is none of them.
            `callbacks.Elastic` takes in who comes later.
        shares: One weight per device, such as `(3, 2, 1)`, for all layers that
            neither have `shards=` nor are in `plan`; None for equal ones. Each
            layer's kernels are rounded to whole ones by largest remainder, and
            a device with a share gets one at least.

    Raises:
        ValueError: TF_CONFIG is malformed, a device or dtype is unknown,
            `shares` are not one number per device, or this task is a worker.
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
        shares: Sequence[float] | None = None,
    ) -> None:
        arguments.check_wire_dtype(wire_dtype)
        plan, automatic = arguments.read_plan(plan)
        shares = arguments.read_shares(shares, automatic)
        memory.keep()
        cluster = joining.resolve(cluster_resolver)
        if cluster is not None and cluster.one_program and not cluster.is_chief:
            server.serve(cluster)
        if cluster is not None:
            joining.connect(cluster, connect_timeout, min_workers)
        names = (
            devices_lib.default_devices()
            if devices is None
            else devices_lib.check(devices)
        )
        self.devices = tuple(names)
        self._uses_all_devices = devices is None
        self.chief_device = arguments.chief_device(names, chief_device)
        self.plan = dict(plan)
        self._share_of = arguments.by_device(shares, names)
        # Names of convolutions that were laid out, and unused keys of the plan
        # that were warned of.
        self._built: dict[str, None] = {}
        self._reported_keys: set[str | None] = set()
        self._automatic: Any = None
        self.wire_dtype = wire_dtype
        self.cluster = cluster
        super().__init__(Extended(self, self.chief_device))
        self._plans = automatic
        if automatic:
            self.planner()
        alive.add(self)

    def __repr__(self) -> str:
        """Devices, the chief's, shares and workers."""
        named = ", ".join(map(short, self.devices))
        parts = [f"devices=[{named}]", f"chief={short(self.chief_device)}"]
        if self.shares is not None:
            parts.append(f"shares={self.shares}")
        if self.cluster is not None:
            parts.append(f"workers={len(self.cluster.others)}")
        if self._plans or self.plan:
            plan = "auto" if self._plans else f"{len(self.plan)} named"
            parts.append(f"plan={plan}")
        if self.wire_dtype is not None:
            parts.append(f"wire_dtype={self.wire_dtype}")
        return f"<ConvParallelStrategy {', '.join(parts)}>"

    @property
    def shares(self) -> tuple[float, ...] | None:
        """The weight of each device; None for equal ones.

        Devices that joined later have the mean of the given weights.
        """
        by_device = self._share_of
        if not by_device:
            return None
        mean = sum(by_device.values()) / len(by_device)
        shares = tuple(by_device.get(name, mean) for name in self.devices)
        return shares if any(shares) else None

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
        """Replaces the devices, as workers leave and return.

        Models that exist stay where they are.
        """
        self.devices = tuple(devices_lib.check(devices))
        if self._automatic is not None:
            self._automatic.devices_changed()

    def new_devices(self) -> list[str]:
        """Devices of tasks that have joined, if the strategy uses all."""
        if not self._uses_all_devices:
            return []
        names = devices_lib.default_devices()
        return [name for name in names if name not in self.devices]

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
            `"split"` and `"shards"`; `"chief"` if it is not split; None if
            there is no plan for the layer.
        """
        entry: Any = self.entry(layer.name)
        if entry is not None or not self._plans:
            return entry
        entry = self.planner().counts(layer, input_shape)
        if entry is not None:
            self.plan[layer.name] = entry
        return entry

    def entry(self, name: str) -> Any:
        """The value of `plan` for a layer; None if it has none.

        A value of None becomes `"chief"`.
        """
        plan = ByLayer("plan", self.plan)
        if not plan.names(name):
            return None
        value = plan.find(name)
        return CHIEF if value is None else value

    def note(self, name: str) -> None:
        """Notes that a convolution of this name has been laid out."""
        self._built[name] = None

    def unused(self) -> str | None:
        """A warning of keys of `plan` that fit no layer, once for each."""
        if self._plans or not self._built:
            return None
        new = {
            k: v for k, v in self.plan.items() if k not in self._reported_keys
        }
        plan = ByLayer("plan", new)
        problem = plan.unused("this strategy's models so far", self._built)
        if problem is None:
            return None
        used = {plan.key(name) for name in self._built}
        self._reported_keys |= set(new) - used
        return (
            f"{problem} Look for misspelt names, unless a model that is made "
            "later has them."
        )


# Strategies that a program holds on to.
alive: weakref.WeakSet[ConvParallelStrategy] = weakref.WeakSet()

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


keras_training.wrap(ConvParallelStrategy)
error_hints.of_strategies(ConvParallelStrategy)
