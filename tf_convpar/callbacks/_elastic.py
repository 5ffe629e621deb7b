"""`Elastic`: `fit` goes on when workers are lost, and when they return."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import time
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_convpar._compat.keras import begin_at
from tf_convpar._compat.keras import print_msg
from tf_convpar.callbacks._copies import Copies
from tf_convpar.callbacks._guards import Guards
from tf_convpar.callbacks._sync_errors import survived
from tf_convpar.callbacks.progress import Progress
from tf_convpar.callbacks.replay_log import rates_of
from tf_convpar.callbacks.replay_log import set_rates
from tf_convpar.cluster.joining import members
from tf_convpar.cluster.joining import step
from tf_convpar.cluster.joining import watched
from tf_convpar.cluster.members import Members
from tf_convpar.cluster.spec import Task
from tf_convpar.cluster.transient_errors import Retries
from tf_convpar.layers import recovers
from tf_convpar.machines import task_of
from tf_convpar.sharding import HowSplit
from tf_convpar.sharding import relayout
from tf_convpar.strategy.calls import at_end_of_call
from tf_convpar.strategy.strategy import ConvParallelStrategy
from tf_convpar.timeline import note
from tf_convpar.units import interval


class Elastic(keras.callbacks.Callback):
    """Lets `fit` go on when a worker is lost, with nothing lost.

    ```python
    model.fit(x, y, callbacks=[convpar.callbacks.Elastic(every="30s")])
    ```

    Every so often all variables are copied to the chief, while training goes
    on. If a worker dies, its layers' shares go to the devices that are left,
    all variables return to the last copy, and the steps since then are made
    again, with the same batches; then Keras' loop goes on where it was. Workers
    that run again at their address are taken back with the next copy.

    Layers, optimizer and variables of the model are new objects afterwards:
    ask the model for them (`self.model.optimizer` in a callback).

    Args:
        directory: Folder for copies, from which a program that is started again
            goes on: `fit` begins at their epoch, and skips the batches of it
            that have been learned from. A model that its first step builds has
            their state after the first batch. A training that comes to its end
            removes the copy; one that is interrupted leaves it, also for the
            next `fit` of the same program. None for memory alone.
        every: Time between two copies: seconds, or text such as `"30s"` or
            `"5min"`. Batches since the last copy are kept in memory: at half a
            gigabyte another copy begins, and at a whole one training waits for
            a copy that is under way.
        neighbours: Time between two copies that stay with the workers, each of
            which keeps its own shards and those of another worker. Steps are
            then made again from the last of these, which pass through the chief
            only if a worker is lost. If both workers that have a shard are
            lost, the last copy on the chief serves. None for no such copies.

    Raises:
        ValueError: `every` or `neighbours` is no time, the model was made
            in no scope of a ConvParallelStrategy, or what is in `directory` is
            not a copy of it.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        every: float | str = "30s",
        neighbours: float | str | None = None,
    ) -> None:
        super().__init__()
        self.directory = None if directory is None else pathlib.Path(directory)
        self.every_s = interval("every", every)
        self.neighbours_s = (
            None if neighbours is None else interval("neighbours", neighbours)
        )
        self._trains = False
        self._copies = Copies(self.every_s, self.neighbours_s)
        self._progress = Progress()
        # Whether a step of any kind was made: variables exist from then on, of
        # models too whose parts alone are called.
        self._ran = False
        # Lasts as long as `fit`, `evaluate` or `predict`.
        self._lasting = contextlib.ExitStack()
        self._guards: Guards | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Replaces the function of Keras' loop, and makes the first copy."""
        # A loop of the user's own may not have come to its end.
        self._lasting.close()
        self._trains = True
        self._ran = False
        self._begin("train")
        if self.directory is not None:
            self._progress.resume(self.model, self.directory)
        self._first_copy()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch, as metrics begin anew."""
        self._copies.since.epoch()
        self._progress.begin_epoch(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Replaces functions again that `Rebalance` has made anew."""
        guards = self._fit_guards()
        if not guards.stand("train"):
            guards.forget()
            guards.put("train")
            self._copies.moved()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Copies the model, if it is time."""
        if not self._progress.stepped:
            return
        try:
            if self._first_copy() or not self._copies.keep_up(self.model):
                return
            cluster, back = members(), list[Task]()
            if cluster is not None and cluster.absent:
                returned = cluster.returned(wait_s=0)
                if returned is None:
                    return  # It is asked again after the next step.
                back = returned
            self._copies.begin(self.model, self._progress.place)
        except tf.errors.OpError:
            return  # A worker is lost, as the next step finds out.
        if cluster is not None and back and self._copies.arrived(wait=True):
            self._take_back(cluster, back)

    def on_train_end(self, logs: Any = None) -> None:
        """Gives Keras its own functions back, and removes copies."""
        self._copies.end(remove=True)
        self._progress.end(self.model)
        self._lasting.close()

    def on_test_begin(self, logs: Any = None) -> None:
        """Begins, as for training."""
        self._begin("test")
        self._first_copy()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Copies variables that the first batch makes."""
        self._first_copy()

    def on_test_end(self, logs: Any = None) -> None:
        """Ends, unless it is part of a training."""
        if not self._trains:
            self._lasting.close()

    def on_predict_begin(self, logs: Any = None) -> None:
        """Begins, as for training."""
        self._begin("predict")
        self._first_copy()

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        """Copies variables that the first batch makes."""
        self._first_copy()

    def on_predict_end(self, logs: Any = None) -> None:
        """Ends, unless it is part of a training."""
        if not self._trains:
            self._lasting.close()

    def _begin(self, mode: str) -> None:
        strategy = self.model.distribute_strategy
        if not isinstance(strategy, ConvParallelStrategy):
            raise ValueError(
                "Expected a model made in the scope of a ConvParallelStrategy, "
                f"whose workers may be lost. Received one of {strategy!r}."
            )
        self._strategy = strategy
        if self._guards is None:
            self._guards = Guards(self.model, self._guarded)
            self._lasting.enter_context(watched())
            self._lasting.enter_context(recovers(self.model, self._go_on))
            self._lasting.enter_context(survived(self._go_on))
            # While calls to workers that hang still fail.
            self._lasting.callback(self._copies.end)
            self._lasting.callback(self._restore_model, self.model)
            at_end_of_call(self._lasting.close)
        self._guards.put(mode)

    def _first_copy(self) -> bool:
        """Copies a model that has variables without copies; whether it did."""
        waits = self._progress.waits or not (self.model.built or self._ran)
        if waits or self._copies.are_whole(self.model):
            return False
        # Noted while no worker is missing.
        HowSplit.last(self.model, self._strategy.devices)
        self._copies.first(
            self.model,
            self.directory if self._trains else None,
            self._progress.place,
            self._strategy,
        )
        return True

    def _restore_model(self, model: keras.Model) -> None:
        """Removes from the model what this callback has set."""
        model.__dict__.pop("get_metrics_result", None)
        if self._trains and self.directory is not None:
            begin_at(model, None)
        self._fit_guards().remove()
        self._guards, self._trains = None, False
        self._progress = Progress()

    def _fit_guards(self) -> Guards:
        if self._guards is None:
            raise RuntimeError("Expected a `fit` that runs. Received none.")
        return self._guards

    def _guarded(self, mode: str, iterator: Iterable[Any]) -> Any:
        """Makes steps as Keras would, and recovers from lost workers."""
        steps = int(self.model.steps_per_execution or 1)
        source, data = iter(iterator), list[Any]()
        # A step that fails may change some of them.
        metrics = self._metrics() if mode == "test" else None
        lost, tries = False, Retries()
        while True:
            try:
                if lost:
                    with step():
                        self._recover(metrics)
                # TensorFlow may tell of a lost worker here already.
                data += itertools.islice(source, steps - len(data))
                if not data:
                    raise StopIteration
                if mode == "train":
                    self._restore_late(data[:1])
                    if self._progress.passes_over(self.model, len(data)):
                        return {}
                self.model.__dict__.pop("get_metrics_result", None)
                with step():
                    logs = self._fit_guards().inner[mode](data)
                break
            except tf.errors.OpError as error:
                lost = self._left_out() or self._passes(error, tries)
                if not lost:
                    raise
        self._ran = True
        if mode == "train":
            self._progress.step(len(data))
            self._copies.since.step(data, rates_of(self.model))
        return logs

    def _restore_late(self, data: Any) -> None:
        """Restores what waits for variables, after a step that makes these."""
        if self._progress.waits:
            with step():
                self._fit_guards().inner["train"](data)
            self._progress.restore(self.model)
            self._ran = True
            self._first_copy()

    def _passes(self, error: tf.errors.OpError, tries: Retries) -> bool:
        """Whether to try again after an error by which no task is lost."""
        if not (tries.should_retry(error) and members() and self._copies.exist):
            return False
        self._copies.settle()
        print_msg(f"\n{self.model.name}: a connection failed; trying again.")
        return True

    def _go_on(self) -> bool:
        """Recovers between steps; whether workers were gone, and it did."""
        metrics, lost = self._metrics(), self._left_out()
        while lost:
            try:
                self._recover(metrics)
                return True
            except tf.errors.OpError:
                lost = self._left_out()
        return False

    def _left_out(self) -> bool:
        """Whether workers are gone; they then have left the cluster."""
        cluster = members()
        gone = cluster.lost() if cluster else []
        if not cluster or not gone or not self._copies.exist:
            return False
        self._copies.settle()
        lost: list[Task] = []
        while gone:
            note(f"lost {_names(gone)}")
            lost += gone
            try:
                cluster.leave(gone)
                self._copies.newest([(t.job, t.index) for t in cluster.absent])
                break
            except tf.errors.OpError:
                # Another one is lost meanwhile.
                gone = cluster.lost()
                if not gone:
                    raise
        print_msg(
            f"\n{self.model.name}: lost {_names(lost)}; making "
            f"{self._copies.since.steps} steps again."
        )
        return True

    def _recover(self, metrics: list[Any] | None) -> None:
        """Brings the model back to where it was, on the devices there are.

        Args:
            metrics: State of the metrics; None for that of the repeated steps.
        """
        now, start_s = rates_of(self.model), time.time()
        self._relay()
        self._copies.since.again(self._step_again, self.model.reset_metrics)
        set_rates(self.model, now)
        if metrics is not None:
            for variable, value in zip(
                self.model.metrics_variables, metrics, strict=True
            ):
                variable.assign(value)
        note(
            f"laid out anew, {self._copies.since.steps} steps made again",
            start_s,
        )

    def _step_again(self, data: Any, rates: Sequence[float | None]) -> None:
        set_rates(self.model, rates)
        with step():
            self._fit_guards().inner["train"](data)

    def _metrics(self) -> list[Any]:
        return [np.asarray(v) for v in self.model.metrics_variables]

    def _relay(self) -> None:
        """Lays the last copy out on the devices that are left."""
        cluster = members()
        if cluster is None:
            raise RuntimeError("Expected a cluster. Received none.")
        absent = {(task.job, task.index) for task in cluster.absent}
        split = HowSplit.last(self.model, self._strategy.devices).joined_by(
            self._strategy.new_devices()
        )
        self._strategy.change_devices(
            [d for d in split.devices if task_of(d) not in absent]
        )
        self._copies.moved(self._strategy)
        relayout(self.model, self._copies.plain, split, self._strategy)
        self._fit_guards().make()

    def _take_back(self, cluster: Members, back: list[Task]) -> None:
        """Gives returned workers their shares again, from a copy."""
        start_s, tries = time.time(), Retries()
        while True:
            try:
                if joins := [t for t in back if t in cluster.absent]:
                    cluster.join(joins)
                self._relay()
                break
            except TimeoutError:
                return  # Gone again before it joined.
            except tf.errors.OpError as error:
                # A worker is lost while shares move.
                if self._go_on():
                    return
                if not self._passes(error, tries):
                    raise
        note(f"{_names(back)} is back", start_s)
        print_msg(f"\n{self.model.name}: {_names(back)} is back.")


def _names(tasks: Iterable[Task]) -> str:
    return ", ".join(f"{task.job} {task.index}" for task in tasks)
