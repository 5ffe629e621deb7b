"""`Elastic`: `fit` goes on when workers are lost, and when they return."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import time
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_convpar._compat.keras import begin_at
from tf_convpar._compat.keras import print_msg
from tf_convpar.callbacks._copies import Copies
from tf_convpar.callbacks._guards import Guards
from tf_convpar.callbacks._replay_log import rate_of
from tf_convpar.callbacks._replay_log import set_rate
from tf_convpar.callbacks._snapshot import restore
from tf_convpar.callbacks._sync_errors import survived
from tf_convpar.cluster.joining import members
from tf_convpar.cluster.joining import step
from tf_convpar.cluster.joining import watched
from tf_convpar.cluster.members import Members
from tf_convpar.cluster.passing import Tries
from tf_convpar.cluster.spec import Task
from tf_convpar.layers import recovers
from tf_convpar.machines import task_of
from tf_convpar.sharding import HowSplit
from tf_convpar.sharding import relayout
from tf_convpar.strategy.calls import when_over
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
        directory: Where each copy is also written to, so that a program that
            is started again goes on from there: `fit` begins at the epoch, and
            passes over the batches of it that have been learned from. A
            training that comes to its end removes it; one that is interrupted
            leaves it, also for the next `fit` of the same program. None for
            memory alone.
        every: Time between two copies: seconds, or text such as `"30s"` or
            `"5min"`. Batches since the last one are kept in memory; half a
            gigabyte of them also begins another copy, and training waits for
            one that is on its way when there is a whole one.
        neighbours: Time between two copies that stay with the workers, as for
            `every`: each keeps its own shards, and those of another one.
            Steps are then made again from the last of these, and nothing
            passes through the chief until a worker is lost. If a worker is
            lost together with the one that has its shards, they are made
            again from the last copy on the chief. None for no such copies.

    Raises:
        ValueError: `every` or `neighbours` is no time, the model is not a
            parallel one, or what is in `directory` is not a copy of it.
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
        # Epoch and steps of it that the model has learned from, steps to pass
        # over, and whether there was one that was not.
        self._epoch = self._done = self._over = 0
        self._stepped = False
        # What lasts as long as `fit`, `evaluate` or `predict`.
        self._lasting = contextlib.ExitStack()
        self._guards: Guards | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Keras' loop calls this in the place of its function from now on."""
        # What an own loop has left behind that came to no end.
        self._lasting.close()
        self._trains = True
        self._over, self._stepped = 0, False
        self._epoch = self._done = 0
        self._begin("train")
        if self.directory is not None:
            self._resume(self.directory)
        self._first_copy()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Keras has begun its metrics anew."""
        self._copies.since.epoch()
        self._epoch, self._done = epoch, 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """`Rebalance` may have laid the model out anew."""
        guards = self._known()
        if not guards.stand("train"):
            guards.forget()
            guards.put("train")
            self._copies.moved()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Copies the model, if it is time."""
        if not self._stepped:
            return
        try:
            if self._first_copy() or not self._copies.keep_up(self.model):
                return
            cluster, back = members(), list[Task]()
            if cluster is not None and cluster.absent:
                found = cluster.returned(wait=False)
                if found is None:
                    return  # It is asked again after the next step.
                back = found
            self._copies.begin(self.model, (self._epoch, self._done))
        except tf.errors.OpError:
            return  # Somebody is lost, as the next step finds out.
        if cluster is not None and back and self._copies.arrived(wait=True):
            self._take_back(cluster, back)

    def on_train_end(self, logs: Any = None) -> None:
        """Keras has its own functions again, and nothing is left to go on."""
        self._copies.end(remove=True)
        self._lasting.close()

    def on_test_begin(self, logs: Any = None) -> None:
        """As for training."""
        self._begin("test")
        self._first_copy()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """The first makes variables that were missing."""
        self._first_copy()

    def on_test_end(self, logs: Any = None) -> None:
        """As for training, of which it may be a part."""
        if not self._trains:
            self._lasting.close()

    def on_predict_begin(self, logs: Any = None) -> None:
        """As for training."""
        self._begin("predict")
        self._first_copy()

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        """The first makes variables that were missing."""
        self._first_copy()

    def on_predict_end(self, logs: Any = None) -> None:
        """As for training, of which it may be a part."""
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
            self._lasting.callback(self._leave, self.model)
            when_over(self._lasting.close)
        self._guards.put(mode)

    def _first_copy(self) -> bool:
        """Whether the model had to be copied: it had variables without any."""
        if not self.model.built or self._copies.are_whole(self.model):
            return False
        # Before a worker is lost, which may still be missing later.
        HowSplit.last(self.model, self._strategy.devices)
        self._copies.first(
            self.model,
            self.directory if self._trains else None,
            (self._epoch, self._done),
            self._strategy,
        )
        return True

    def _resume(self, directory: pathlib.Path) -> None:
        """Goes on from the copy that an earlier program has written, if any."""
        place = restore(self.model, directory)
        if place is not None:
            self._epoch, self._done = place
            self._over = self._done
            begin_at(self.model, self._epoch)
            # Metrics have no result before a step, and the epoch that training
            # goes on in may have none left.
            self.model.__dict__["get_metrics_result"] = dict
            print_msg(
                f"{self.model.name}: going on after step {self._over} of epoch "
                f"{self._epoch + 1}."
            )

    def _leave(self, model: keras.Model) -> None:
        """The model is Keras' alone again."""
        model.__dict__.pop("get_metrics_result", None)
        if self._trains and self.directory is not None:
            begin_at(model, None)
        self._known().remove()
        self._guards, self._trains = None, False

    def _known(self) -> Guards:
        if self._guards is None:
            raise RuntimeError("Expected a `fit` that runs. Received none.")
        return self._guards

    def _guarded(self, mode: str, iterator: Iterable[Any]) -> Any:
        """Steps as Keras' function would, whoever is lost on the way."""
        steps = int(self.model.steps_per_execution or 1)
        source, data = iter(iterator), list[Any]()
        # A step that fails may have changed some of them.
        metrics = self._metrics() if mode == "test" else None
        lost, tries = False, Tries()
        while True:
            try:
                if lost:
                    with step():
                        self._recover(metrics)
                # TensorFlow may tell of a lost worker here already.
                data += itertools.islice(source, steps - len(data))
                if not data:
                    raise StopIteration
                if mode == "train" and self._over > 0:
                    self._over -= len(data)
                    self._done += len(data)
                    return {}
                self.model.__dict__.pop("get_metrics_result", None)
                with step():
                    logs = self._known().inner[mode](data)
                break
            except tf.errors.OpError as error:
                lost = self._left_out() or self._passes(error, tries)
                if not lost:
                    raise
        if mode == "train":
            self._stepped = True
            self._done += len(data)
            self._copies.since.step(data, rate_of(self.model))
        return logs

    def _passes(self, error: tf.errors.OpError, tries: Tries) -> bool:
        """Whether all tasks are there, and reach one another again."""
        if not (tries.again(error) and members() and self._copies.exist):
            return False
        self._copies.settle()
        print_msg(f"\n{self.model.name}: a connection failed; trying again.")
        return True

    def _go_on(self) -> bool:
        """Between steps: whether workers were gone, and the model is whole."""
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
            metrics: State of the metrics; None for what the steps give that
                are made again.
        """
        now, start_s = rate_of(self.model), time.time()
        self._relay()
        self._copies.since.again(self._step_again, self.model.reset_metrics)
        set_rate(self.model, now)
        if metrics is not None:
            for variable, value in zip(
                self.model.metrics_variables, metrics, strict=True
            ):
                variable.assign(value)
        note(
            f"laid out anew, {self._copies.since.steps} steps made again",
            start_s,
        )

    def _step_again(self, data: Any, rate: float | None) -> None:
        set_rate(self.model, rate)
        with step():
            self._known().inner["train"](data)

    def _metrics(self) -> list[Any]:
        return [np.asarray(v) for v in self.model.metrics_variables]

    def _relay(self) -> None:
        """The model has the state of the last copy, on what is there."""
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
        self._known().make()

    def _take_back(self, cluster: Members, back: list[Task]) -> None:
        """Workers that have returned have their shares again, by a copy."""
        start_s, tries = time.time(), Tries()
        while True:
            try:
                if joins := [t for t in back if t in cluster.absent]:
                    cluster.join(joins)
                self._relay()
                break
            except TimeoutError:
                return  # Gone again, before it was part of anything.
            except tf.errors.OpError as error:
                # It, or another one, is lost while shares move.
                if self._go_on():
                    return
                if not self._passes(error, tries):
                    raise
        note(f"{_names(back)} is back", start_s)
        print_msg(f"\n{self.model.name}: {_names(back)} is back.")


def _names(tasks: Iterable[Task]) -> str:
    return ", ".join(f"{task.job} {task.index}" for task in tasks)
