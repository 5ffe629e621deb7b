"""What all methods share: `fit` and the rest, which read like Keras."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Generator
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat.keras import print_msg
from tf_convpar._compat.keras import restored_epoch
from tf_convpar.machines import short
from tf_convpar.machines import task_of
from tf_convpar.replicas import _shares
from tf_convpar.replicas._centre import Centre
from tf_convpar.replicas._data import Source
from tf_convpar.replicas._data import source_of
from tf_convpar.replicas._group import Group
from tf_convpar.replicas._packed import check_packable
from tf_convpar.replicas._replica import OnOneDevice
from tf_convpar.replicas._replica import PackedState
from tf_convpar.replicas._replica import Replica
from tf_convpar.strategy.devices import available
from tf_convpar.strategy.devices import check
from tf_convpar.strategy.devices import default_devices


class Method(abc.ABC):
    """A way to train several replicas of a model; see the methods.

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

    # Whether a step of one replica waits for those of others.
    _waits = False

    @abc.abstractmethod
    def _make(self) -> None:
        """Makes what steps, of `replicas` and `centre`."""

    def _restart(self) -> None:  # noqa: B027 (rounds have no memory)
        """Forgets what steps remember of earlier ones, as `fit` begins."""

    @abc.abstractmethod
    def _steps(self, steps: int, source: Source) -> Generator[Any, None, None]:
        """Makes an epoch's steps; gives the state of metrics after each."""

    def _centre_device(self) -> str:
        """The device that the centre is on."""
        return self.chief

    def _finish(self) -> None:  # noqa: B027 (most have nothing to do)
        """Brings the centre up to date, at the end of an epoch."""

    def _at_once(self) -> int:
        """Steps that are made in one call, between which nothing is logged."""
        return 1

    def _per_step(self) -> int:
        """Samples of a step, as the progress bar counts them."""
        return sum(r.batch for r in self.replicas)

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_data: Any = None,
        shuffle: bool = True,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_freq: int = 1,
    ) -> keras.callbacks.History:
        """Trains, as `keras.Model.fit` does.

        ```python
        history = SyncEASGD(model).fit(x, y, batch_size=64, epochs=3)
        ```

        Args:
            x: Arrays, which are cut into a shard for each replica and sent
                once; a `tf.data.Dataset`, which each replica reads where it
                is; or a generator or `PyDataset`, which the chief feeds.
            y: As for Keras.
            batch_size: Samples of a step of one replica, on average over them
                where `shares` differ; 32 if not given. Not for datasets,
                whose elements are batches.
            epochs: As for Keras.
            verbose: As for Keras.
            callbacks: As for Keras. They get the model.
            validation_data: As for Keras; what is validated is the centre.
            shuffle: Whether samples of arrays come in random order.
            sample_weight: As for Keras.
            initial_epoch: As for Keras.
            steps_per_epoch: Steps of an epoch; needed where the number of
                samples is unknown.
            validation_freq: As for Keras.

        Returns:
            Keras' history.

        Raises:
            ValueError: There are too few samples, or steps are unknown.
        """
        source = source_of(x, y, sample_weight, shuffle)
        model = self.model
        self._prepare(source, 32 if batch_size is None else batch_size)
        steps = self._steps_of(source, steps_per_epoch)
        if not isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = keras.callbacks.CallbackList(
                callbacks,
                add_history=True,
                add_progbar=verbose != 0,
                verbose=1 if verbose == "auto" else verbose,
                epochs=epochs,
                steps=steps,
                model=model,
            )
        model.stop_training = False
        callbacks.on_train_begin()
        initial_epoch = restored_epoch(model) or initial_epoch
        self._from_model()
        logs: dict[str, Any] = {}
        for epoch in range(initial_epoch, epochs):
            callbacks.on_epoch_begin(epoch)
            logs = self._epoch(steps, source, callbacks)
            self._finish()
            self.to_model()
            due = (epoch + 1) % validation_freq == 0
            if validation_data is not None and due:
                found = model.evaluate(
                    *_unpacked(validation_data),
                    callbacks=callbacks,
                    verbose=0,
                    return_dict=True,
                )
                logs |= {f"val_{name}": value for name, value in found.items()}
            callbacks.on_epoch_end(epoch, logs)
            if model.stop_training:
                break
        callbacks.on_train_end(logs)
        history: keras.callbacks.History = model.history
        return history

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """`keras.Model.evaluate` with the centre's weights."""
        self.to_model()
        return self.model.evaluate(*args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """`keras.Model.predict` with the centre's weights."""
        self.to_model()
        return self.model.predict(*args, **kwargs)

    def save(self, *args: Any, **kwargs: Any) -> None:
        """`keras.Model.save` with the centre's weights."""
        self.to_model()
        self.model.save(*args, **kwargs)

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

    def _epoch(
        self, steps: int, source: Source, callbacks: Any
    ) -> dict[str, Any]:
        form = self.replicas[0].form
        self.model.reset_metrics()
        zero = form.metrics.read(form.measured)
        # A sum over replicas has of what each began with one too many.
        others = (len(self.replicas) - 1) * zero
        for replica in self.replicas:
            replica.metrics.assign(zero)
        logs: dict[str, Any] = {}
        with contextlib.closing(self._steps(steps, source)) as states:
            for first in range(0, steps, self._at_once()):
                made = min(self._at_once(), steps - first)
                callbacks.on_train_batch_begin(first)
                form.metrics.write(next(states) - others, form.measured)
                # Schedules of the learning rate go by it.
                self.model.optimizer.iterations.assign_add(made)
                logs = self.model.get_metrics_result()
                logs = keras.tree.map_structure(float, logs)
                callbacks.on_train_batch_end(first + made - 1, logs)
                if self.model.stop_training:
                    break
        return dict(logs)

    def _prepare(self, source: Source, batch_size: int) -> None:
        if not self.replicas:
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
        source.place(self.replicas, self.seed)
        self._restart()

    def _replicas(
        self, form: PackedState, optimizer: Any, source: Source
    ) -> list[Replica]:
        return [
            OnOneDevice(form, group[0], i, optimizer)
            if len(group) == 1
            else Group(form, group, i, optimizer, self.plan, source.sample())
            for i, group in enumerate(self.groups)
        ]

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

    def _steps_of(self, source: Source, given: int | None) -> int:
        if given is not None:
            return given
        if source.samples is None:
            raise ValueError(
                "Expected `steps_per_epoch` with data of unknown length. "
                "Received: None."
            )
        return max(1, source.samples // self._per_step())


def _groups(devices: Sequence[str | Sequence[str]]) -> list[list[str]]:
    """The full names of each replica's devices."""
    if isinstance(devices, str):
        check(devices)  # Says what was expected.
    groups = [[g] if isinstance(g, str) else list(g) for g in devices]
    names = iter(check([name for group in groups for name in group]))
    return [[next(names) for _ in group] for group in groups]


def _unpacked(data: Any) -> tuple[Any, ...]:
    return data if isinstance(data, tuple) else (data,)


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
