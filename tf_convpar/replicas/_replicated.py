"""What takes part: replicas and their centre, who is lost and who returns."""

from __future__ import annotations

import abc
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat.keras import print_msg
from tf_convpar.cluster.joining import members
from tf_convpar.cluster.passing import Tries
from tf_convpar.machines import short
from tf_convpar.machines import task_of
from tf_convpar.replicas import _shares
from tf_convpar.replicas._centre import Centre
from tf_convpar.replicas._data import Source
from tf_convpar.replicas._group import Group
from tf_convpar.replicas._packed import check_packable
from tf_convpar.replicas._replica import OnOneDevice
from tf_convpar.replicas._replica import PackedState
from tf_convpar.replicas._replica import Replica
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
    ) -> None:
        if not getattr(model, "compiled", False) or model.optimizer is None:
            raise ValueError(
                "Expected a compiled model: `model.compile(optimizer, loss)` "
                f"says how it learns. Received: {model!r}, not compiled."
            )
        _check_optimizer(model.optimizer)
        self.model = model
        self.groups = _groups(default_devices() if devices is None else devices)
        self.devices = [group[0] for group in self.groups]
        self.shares = _shares.checked(shares, len(self.devices))
        self.seed = seed
        self.plan = plan
        self.chief = available()[0]
        self.replicas: list[Replica] = []
        self.centre: Centre | None = None
        # Group, share and samples of a step of replicas that are lost.
        self._away: list[tuple[list[str], float, int]] = []
        # Of what has failed since something was last done.
        self._tries = Tries()

    # Whether a step of one replica waits for those of others.
    _waits = False

    @abc.abstractmethod
    def _make(self) -> None:
        """Makes what steps, of `replicas` and `centre`."""

    def _make_anew(self) -> None:
        """Makes it of those that there are now."""
        graphs.release(device for group in self.groups for device in group)
        self._make()

    def _restart(self) -> None:  # noqa: B027 (rounds have no memory)
        """Forgets what steps remember of earlier ones, as `fit` begins."""

    def _centre_device(self) -> str:
        """The device that the centre is on."""
        return self.chief

    def to_model(self) -> None:
        """Assigns the centre's weights to the model's own variables.

        Moving averages, as batch normalization's, are the mean of the
        replicas'.
        """
        if self.centre is None:
            return
        self.centre.write()
        form = self.centre.form
        if form.averages:
            kept = [r.kept.read_value() for r in self.replicas]
            form.kept.write(tf.add_n(kept) / len(kept), form.averages)

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
        self._restart()

    def _there(self) -> Centre:
        if self.centre is None:
            raise RuntimeError("Expected `fit` first.")
        return self.centre

    def _prepare(self, source: Source, batch_size: int) -> None:
        if self.replicas:
            self._leave_lost_out()
        else:
            # Builds metrics, and the model if it is not.
            self.model.test_on_batch(*source.sample())
            self.model.reset_metrics()
            form = PackedState(self.model, check_packable(self.model))
            self.centre = Centre(
                form, self._centre_device(), self._centre_optimizer()
            )
            self.replicas = self._replicas(
                form, self._replica_optimizer(), source
            )
            self._make()
        if batch_size != int(batch_size) or batch_size < 1:
            raise ValueError(
                "Expected a batch_size of at least 1, the samples of a "
                f"replica's step. Received: {batch_size!r}."
            )
        total = batch_size * len(self.replicas)
        if not isinstance(self.shares, list):
            self.shares = self._measured(source, total)
        for replica, batch in zip(
            self.replicas, _shares.apportioned(total, self.shares), strict=True
        ):
            replica.batch = batch
        self._place(source)

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
        if len(group) == 1:
            return OnOneDevice(form, group[0], index, optimizer)
        sample = source.sample()
        return Group(form, group, index, optimizer, self.plan, sample)

    def _measured(self, source: Source, total: int) -> list[float]:
        """Shares that were not given."""
        machines = {task_of(device) for device in self.devices}
        if self.shares is None and (not self._waits or len(machines) == 1):
            return [1.0] * len(self.devices)
        probes = self._replicas(self.replicas[0].form, None, source)
        found = _shares.balanced(probes, source.sample(), total)
        listed = ", ".join(
            f"{short(device)} {batch}"
            for device, batch in zip(
                self.devices, _shares.apportioned(total, found), strict=True
            )
        )
        print_msg(f"{self.model.name}: samples of a step: {listed}.")
        return found

    def _survived(self, call: Callable[[], Any]) -> Any:
        """The result of a call between steps, made again without the lost."""
        self._tries = Tries()
        while True:
            try:
                return call()
            except tf.errors.OpError as error:
                if not self._leave_lost_out() and not self._passes(error):
                    raise

    def _passes(self, error: tf.errors.OpError) -> bool:
        """Whether to try again what failed though nobody is lost."""
        if not (self._tries.again(error) and members()):
            return False
        print_msg(f"{self.model.name}: a connection failed; trying again.")
        return True

    def _leave_lost_out(self) -> bool:
        """Leaves replicas out whose task is gone, and the task as well.

        The centre goes on; if it was lost, from the mean of those left.

        Returns:
            Whether any task was gone.

        Raises:
            RuntimeError: No replica is left.
        """
        found = members()
        gone = found.lost() if found else []
        tasks = {(task.job, task.index) for task in gone}
        lost = [bool(tasks & set(map(task_of, g))) for g in self.groups]
        if not found or not gone:
            return False
        names = ", ".join(f"{task.job} {task.index}" for task in gone)
        if all(lost):
            raise RuntimeError(
                f"Expected a replica to be left. Received none: lost {names}, "
                "where all of them were. Let the chief have one as well "
                "(`devices=strategy.devices`), or resume with "
                "keras.callbacks.BackupAndRestore."
            ) from None
        found.leave(gone)
        if not self.replicas:
            return True
        shares = list(map(float, self.shares or []))
        every = list(zip(self.groups, shares, self.replicas, lost, strict=True))
        self._away += [(g, s, r.batch) for g, s, r, off in every if off]
        left = [(g, s, r) for g, s, r, off in every if not off]
        self._are(*map(list, zip(*left, strict=True)))
        centre = self._there()
        # Also of those who left when this failed half-way.
        absent = {(task.job, task.index) for task in found.absent}
        if task_of(centre.device) in absent:
            weights = [tf.identity(r.weights.value) for r in self.replicas]
            self.centre = Centre(
                centre.form, self._centre_device(), self._centre_optimizer()
            )
            self.centre.assign(tf.add_n(weights) / len(weights))
        self._make_anew()
        print_msg(
            f"{self.model.name}: lost {names}. {len(self.replicas)} of "
            f"{len(every)} replicas go on."
        )
        return True

    def _go_on_without_lost(self, source: Source, error: Exception) -> None:
        """In an epoch, with data that is cut anew.

        Raises:
            Exception: The given error, if no task is gone, and it stays.
            RuntimeError: No replica is left.
        """
        while True:
            try:
                if not self._leave_lost_out():
                    if not self._passes(error):
                        raise error
                    self._make_anew()
                self._place(source)
                return
            except tf.errors.OpError as another:
                # Another one is lost meanwhile.
                if another is error:
                    raise
                error = another

    def _take_back(self, source: Source) -> None:
        """Lets replicas whose task is there again begin at the centre.

        Raises:
            tf.errors.OpError: One of them, or another one, is lost meanwhile.
        """
        found = members()
        if not found or not self._away:
            return
        back = found.returned()
        if back:
            try:
                found.join(back)
            except TimeoutError:
                return  # Gone again, before it was part of anything.
        absent = {(task.job, task.index) for task in found.absent}
        returned = [
            (group, share, batch)
            for group, share, batch in self._away
            if not absent & set(map(task_of, group))
        ]
        if not returned:
            return
        replicas = list(self.replicas)
        for group, _, batch in returned:
            made = self._replica(
                self._there().form,
                group,
                len(replicas),
                self._replica_optimizer(),
                source,
            )
            made.batch = batch
            replicas.append(made)
        self._away = [a for a in self._away if a not in returned]
        groups, shares, _ = map(list, zip(*returned, strict=True))
        self._are(
            [*self.groups, *groups],
            [*map(float, self.shares or []), *shares],
            replicas,
        )
        self._make_anew()
        self._place(source)
        names = ", ".join(
            sorted({" ".join(map(str, task_of(d))) for g in groups for d in g})
        )
        print_msg(
            f"{self.model.name}: {names} is back. {len(replicas)} replicas."
        )

    def _are(
        self,
        groups: list[list[str]],
        shares: list[float],
        replicas: list[Replica],
    ) -> None:
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


def _check_optimizer(optimizer: Any) -> None:
    """Raises ValueError for one that does not treat all weights alike."""
    reason = None
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        reason = "a LossScaleOptimizer"
    elif getattr(optimizer, "clipnorm", None) is not None:
        reason = "clipnorm, of each layer; global_clipnorm is of all weights"
    elif getattr(optimizer, "_exclude_from_weight_decay", None):
        reason = "weight decay of some weights only"
    elif type(optimizer).__name__ in ("Lamb", "Muon", "Adafactor"):
        reason = f"{type(optimizer).__name__}, which looks at each layer"
    if reason:
        raise ValueError(
            "Expected an optimizer that treats each weight alone: replicas' "
            f"weights are one vector. Received: {reason}."
        )
