"""What takes part: replicas, their shares, and their centre."""

from __future__ import annotations

import abc
import os
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat.keras import excludes_from_decay
from tf_convpar._compat.keras import print_msg
from tf_convpar.cluster.joining import members
from tf_convpar.machines import kind_of
from tf_convpar.machines import short
from tf_convpar.machines import task_of
from tf_convpar.replicas import sample_shares
from tf_convpar.replicas._group import Group
from tf_convpar.replicas.centre import Centre
from tf_convpar.replicas.data import Source
from tf_convpar.replicas.packed import check_packable
from tf_convpar.replicas.replica import OnOneDevice
from tf_convpar.replicas.replica import PackedState
from tf_convpar.replicas.replica import Replica
from tf_convpar.replicas.wire import Wire
from tf_convpar.strategy import graphs
from tf_convpar.strategy.devices import available
from tf_convpar.strategy.devices import check
from tf_convpar.strategy.devices import default_devices


class Replicated(abc.ABC):
    """Several replicas of a model, and their centre.

    Args:
        model: A Keras model, built and compiled. It holds the centre's
            weights whenever a callback's epoch ends, and after `fit`.
        devices: Names of devices, one for each replica; None for every GPU of
            the cluster and the CPU of tasks without one. A list of names in
            the place of one is a group, over which a replica is split.
        shares: Samples of each replica's step, relative to one another, or
            `"auto"`, which measures with which all steps take as long as one
            another, when `fit` begins. None is `"auto"` where replicas that
            wait for one another are on several machines, else as many each.
            After `fit` they are numbers, which repeat a training exactly.
        seed: Of the order of samples and of random layers.
        plan: How groups split the model, as `convpar.parallelize` takes it.
        algorithm: How convolutions are computed, as `convpar.parallelize`
            takes it: with `"auto"` a replica on one device runs what that
            makes of the model, with all that fuses. None runs Keras' own.

    Raises:
        ValueError: The model is not compiled, has no weights, or more
            replicas are asked for than there are devices.
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        devices: Sequence[str | Sequence[str]] | None = None,
        shares: Sequence[float] | str | None = None,
        seed: int = 0,
        plan: Any = None,
        algorithm: str | None = None,
    ) -> None:
        if not getattr(model, "compiled", False) or model.optimizer is None:
            raise ValueError(
                "Expected a compiled model: `model.compile(optimizer, loss)` "
                f"says how it learns. Received: {model!r}, not compiled."
            )
        _check_optimizer(model.optimizer)
        _check_model(model)
        self.model = model
        # Tasks that have not answered yet: they get a replica when they do.
        cluster_members = members() if devices is None else None
        self._late = list(cluster_members.absent) if cluster_members else []
        self.groups = _groups(default_devices() if devices is None else devices)
        self.devices = [group[0] for group in self.groups]
        if devices is None and "TF_CONFIG" in os.environ and not members():
            print_msg(
                f"{model.name}: one replica for each device of this process: "
                f"{', '.join(map(short, self.devices))}. TF_CONFIG is set, and "
                "no ConvParallelStrategy joined its cluster: make one at the "
                "start, before any variable."
            )
        self.shares = sample_shares.checked(shares, len(self.devices))
        self.seed = seed
        self.plan = plan
        self.algorithm = algorithm
        self.chief = available()[0]
        self.replicas: list[Replica] = []
        self.centre: Centre | None = None

    # Whether a step of one replica waits for those of others.
    _waits = False
    # Whether a call from the chief makes many steps on a device.
    _many_in_a_call = False

    def _wire_of_steps(self) -> Wire | None:
        """How gradients and weights travel in each step, if they do."""
        return None

    @property
    def _present(self) -> list[Replica]:
        """Replicas that take part in what is done now."""
        return self.replicas

    @abc.abstractmethod
    def _make(self) -> None:
        """Makes what steps, of `replicas` and `centre`."""

    def _make_anew(self) -> None:
        """Makes it of those that there are now."""
        self._release()
        self._make()

    def _release(self) -> None:
        """Frees what TensorFlow has left of what was made before."""
        graphs.release(device for group in self.groups for device in group)

    def _restart(self) -> None:  # noqa: B027 (rounds have no memory)
        """Forgets what steps remember of earlier ones, as `fit` begins."""

    def _centre_devices(self) -> list[str]:
        """The devices that the centre is on, a piece on each."""
        return [self.chief]

    def _centre_of(self, form: PackedState) -> Centre:
        """The centre, with the weights that the model has now."""
        return Centre(form, self._centre_devices(), self._centre_optimizer())

    def to_model(self) -> None:
        """Assigns the centre's weights to the model's own variables.

        Moving averages, as batch normalization's, are the mean of the
        replicas'; other states are the first replica's.
        """
        if self.centre is None:
            return
        self.centre.write()
        form = self.centre.form
        if form.averages:
            kept = [r.kept.read_value() for r in self._present]
            form.kept.write(tf.add_n(kept) / len(kept), form.averages)
        for variable, state in zip(
            form.states, self._present[0].states, strict=True
        ):
            variable.assign(tf.convert_to_tensor(state))

    def _from_model(self) -> None:
        """Takes the model's weights, if they are no more the centre's.

        They were loaded since, by the user or by `BackupAndRestore`.
        """
        centre = self._there()
        form = centre.form
        weights = form.weights.read(form.trained)
        if bool(tf.reduce_all(weights == centre.value())):
            return
        centre.assign(weights)
        kept = form.kept.read(form.averages)
        for replica in self.replicas:
            replica.weights.assign(weights)
            replica.kept.assign(kept)
        self._begin_at(weights)

    def _begin_at(self, weights: tf.Tensor) -> None:
        """Forgets what was learned with other weights than these.

        The centre and the replicas have them.
        """
        self._restart()

    def _there(self) -> Centre:
        if self.centre is None:
            raise RuntimeError("Expected `fit` first.")
        return self.centre

    def _prepare(self, source: Source, batch_size: int) -> None:
        if batch_size != int(batch_size) or batch_size < 1:
            raise ValueError(
                "Expected a batch_size of at least 1, the samples of a "
                f"replica's step. Received: {batch_size!r}."
            )
        if self.replicas:
            self._leave_lost_out()
        else:
            # Builds metrics, and the model if it is not.
            self.model.test_on_batch(*source.sample())
            self.model.reset_metrics()
            form = PackedState(self.model, check_packable(self.model))
            if not isinstance(self.shares, list):
                self._measure(form, source, batch_size)
            self.centre = self._centre_of(form)
            self.replicas = self._replicas(
                form, self._replica_optimizer(), source
            )
            self._make()
        # Of those who take part: to leave one out makes no other's larger.
        batches = self._batches(batch_size * len(self.replicas))
        for replica, batch in zip(self.replicas, batches, strict=True):
            replica.batch = batch
        self._place(source)

    @abc.abstractmethod
    def _leave_lost_out(self) -> bool:
        """Leaves replicas out whose task is gone; whether any was."""

    def _replicas(
        self, form: PackedState, optimizer: Any, source: Source
    ) -> list[Replica]:
        return [
            self._replica(form, group, i, optimizer, source)
            for i, group in enumerate(self.groups)
        ]

    def _replica(
        self,
        form: PackedState,
        group: list[str],
        index: int,
        optimizer: Any,
        source: Source,
    ) -> Replica:
        # "auto" changes nothing on a GPU, and XLA compiles this kind only.
        plain = self.algorithm is None or (
            self.algorithm == "auto" and kind_of(group[0]) == "GPU"
        )
        if len(group) == 1 and plain:
            return OnOneDevice(form, group[0], index, optimizer)
        plan = self.plan if len(group) > 1 else {}
        sample = source.sample()
        return Group(
            form, group, index, optimizer, plan, self.algorithm, sample
        )

    def _batches(self, total: int) -> list[int]:
        """Samples of each replica's step, in all so many."""
        assert isinstance(self.shares, list)
        return sample_shares.apportioned(total, self.shares)

    def _measure(
        self, form: PackedState, source: Source, batch_size: int
    ) -> None:
        """Finds shares that were not given, and leaves out whom none helps."""
        machines = {task_of(device) for device in self.devices}
        if self.shares is None and (not self._waits or len(machines) == 1):
            self.shares = [1.0] * len(self.devices)
            return
        probes = self._replicas(form, None, source)
        total = batch_size * len(probes)
        batches = sample_shares.balanced(
            probes,
            source.sample(),
            total,
            self._wire_of_steps(),
            self._many_in_a_call,
        )
        idle = [
            short(d)
            for d, share in zip(self.devices, batches, strict=True)
            if not share
        ]
        kept = [i for i, share in enumerate(batches) if share]
        self.groups = [self.groups[i] for i in kept]
        self.devices = [self.devices[i] for i in kept]
        self.shares = [batches[i] for i in kept]
        listed = ", ".join(
            f"{short(device)} {batch}"
            for device, batch in zip(
                self.devices,
                sample_shares.apportioned(batch_size * len(kept), self.shares),
                strict=True,
            )
        )
        print_msg(f"{self.model.name}: samples of a step: {listed}.")
        if idle:
            print_msg(
                f"{self.model.name}: without {', '.join(idle)}: less than a "
                "tenth of an equal share would take as long as others' steps."
            )

    def _set_replicas(
        self,
        groups: list[list[str]],
        shares: list[float],
        replicas: list[Replica],
    ) -> None:
        """Replaces all replicas, and numbers them anew."""
        self.groups, self.shares, self.replicas = groups, shares, replicas
        self.devices = [group[0] for group in groups]
        for index, replica in enumerate(replicas):
            replica.index = index

    def _place(self, source: Source) -> None:
        """Gives each replica its data."""
        source.place(self.replicas, self.seed)
        self._restart()

    def _optimizer(self) -> Any:
        """What steps, at the replicas or at the centre."""
        return self.model.optimizer

    def _replica_optimizer(self) -> Any:
        """The optimizer of replicas; None where they take no steps."""
        return self._optimizer()

    def _centre_optimizer(self) -> Any:
        """The optimizer of the centre; None where it takes no steps."""
        return None

    def _eta(self) -> float:
        """The learning rate now; callbacks may change it."""
        return float(self.model.optimizer.learning_rate)


def _groups(devices: Sequence[str | Sequence[str]]) -> list[list[str]]:
    """The full names of each replica's devices."""
    if isinstance(devices, str):
        check(devices)  # Says what was expected.
    groups = [[g] if isinstance(g, str) else list(g) for g in devices]
    names = iter(check([name for group in groups for name in group]))
    return [[next(names) for _ in group] for group in groups]


def _check_model(model: keras.Model) -> None:
    """Raises ValueError for a model whose steps are not Keras' own."""
    if type(model).train_step is not keras.Model.train_step:
        raise ValueError(
            "Expected a model with Keras' own `train_step`, of which replicas "
            "make the parts where they are. Received: "
            f"{type(model).__name__}.train_step. Override `compute_loss` "
            "instead, or train it in a ConvParallelStrategy."
        )
    constrained = [v.path for v in model.trainable_variables if v.constraint]
    if constrained:
        raise ValueError(
            "Expected weights without constraints: replicas' weights are one "
            f"vector. Received constraints of: {', '.join(constrained)}."
        )


def _check_optimizer(optimizer: Any) -> None:
    """Raises ValueError for one that does not treat all weights alike."""
    reason = None
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        reason = "a LossScaleOptimizer"
    elif getattr(optimizer, "clipnorm", None) is not None:
        reason = "clipnorm, of each layer; global_clipnorm is of all weights"
    elif excludes_from_decay(optimizer):
        reason = "weight decay of some weights only"
    elif getattr(optimizer, "use_ema", False):
        reason = "use_ema=True: replicas have no moving average of weights"
    elif type(optimizer).__name__ in (
        *("Adafactor", "Lamb", "MultiOptimizer", "Muon"),
    ):
        reason = f"{type(optimizer).__name__}, which looks at each layer"
    if reason:
        raise ValueError(
            "Expected an optimizer that treats each weight alone: replicas' "
            f"weights are one vector. Received: {reason}."
        )
