"""The loop of `fit`: epochs and their steps, whoever is lost meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_convpar._compat.keras import numbers_of
from tf_convpar._compat.keras import steps_counter
from tf_convpar.replicas.data import Source


class Epochs:
    """Epochs of one `fit` of a method.

    ```python
    logs = Epochs(method, source, steps, callbacks, validate).run(0, 3)
    ```

    What is made of replicas that are lost on the way is made again without
    them (`Survivors`); an epoch begins with those that are back.

    Args:
        method: The method (`Method`), which makes the steps.
        source: Its data, placed.
        steps: Of each epoch.
        callbacks: Keras' list of them.
        validate: Gives the logs of an epoch's validation, by its number.
    """

    def __init__(
        self,
        method: Any,
        source: Source,
        steps: int,
        callbacks: Any,
        validate: Callable[[int], dict[str, Any]],
    ) -> None:
        self._method = method
        self._model = method.model
        self._source = source
        self._steps = steps
        self._callbacks = callbacks
        self._validate = validate
        # What metrics of an epoch begin with.
        self._zero: Any = None

    def run(self, initial_epoch: int, epochs: int) -> dict[str, Any]:
        """Trains for all epochs that are left; returns the last one's logs."""
        logs: dict[str, Any] = {}
        first, resumed_at = self._survived(
            lambda: self._method._resumed(
                self._source, initial_epoch, self._steps
            )
        )
        if first >= epochs > initial_epoch:
            self._settle(last=True)
        for epoch in range(first, epochs):
            self._callbacks.on_epoch_begin(epoch)
            self._survived(self._begin)
            logs = self._epoch(epoch, resumed_at if epoch == first else 0)
            last = self._model.stop_training or epoch + 1 == epochs
            self._settle(last)
            logs |= self._validate(epoch)
            self._callbacks.on_epoch_end(epoch, logs)
            if self._model.stop_training:
                if not last:  # A callback of this epoch stopped it.
                    self._settle(last=True)
                break
        self._method._over()
        return logs

    def _survived(self, call: Callable[[], Any]) -> Any:
        return self._method._survived(call, self._source)

    def _begin(self) -> None:
        """Begins an epoch: who was lost and has returned takes part."""
        self._method._take_back(self._source)
        self._model.reset_metrics()
        form = self._method.replicas[0].form
        self._zero = form.metrics.read(form.measured)
        self._method._reset_metrics(self._zero)

    def _settle(self, last: bool) -> None:
        """Ends an epoch: the model has the centre's weights."""

        def settle() -> None:
            self._method._finish(last)
            self._method.to_model()

        self._survived(settle)

    def _epoch(self, epoch: int, done: int) -> dict[str, Any]:
        """Makes the steps of an epoch that are left, after `done` of them."""
        form = self._method.replicas[0].form
        logs: dict[str, Any] = {}
        with (
            self._left_with_what_it_learned(),
            contextlib.closing(
                self._surviving_steps(self._steps - done)
            ) as states,
        ):
            while done < self._steps:
                self._callbacks.on_train_batch_begin(done)
                more, state = next(states)
                done += more
                # A sum over replicas has of what each began with one too many.
                others = len(self._method._present) - 1
                form.metrics.write(state - others * self._zero, form.measured)
                # Schedules of the learning rate go by it.
                steps_counter(self._model.optimizer).assign_add(more)
                self._method._keep(epoch, done, self._steps)
                logs = numbers_of(self._model.get_metrics_result())
                self._callbacks.on_train_batch_end(done - 1, logs)
                if self._model.stop_training:
                    break
        return dict(logs)

    def _surviving_steps(
        self, steps: int
    ) -> Generator[tuple[int, Any], None, None]:
        """An epoch's steps, whoever is lost on the way."""
        done = 0
        while done < steps:
            left = steps - done
            try:
                with contextlib.closing(
                    self._method._steps(left, self._source)
                ) as states:
                    for more, state in states:
                        done += more
                        self._method._has_done_something()
                        yield more, state
            except tf.errors.OutOfRangeError:
                raise ValueError(
                    "Expected a dataset with a batch at least for each of "
                    f"{len(self._method.replicas)} replicas. Received: fewer."
                ) from None
            except tf.errors.OpError as error:
                self._method._go_on_without_lost(self._source, error)

    @contextlib.contextmanager
    def _left_with_what_it_learned(self) -> Iterator[None]:
        """The model has the centre's weights where an epoch is interrupted.

        As Keras' own `fit` leaves it; the next `fit` goes on from the model.
        """
        try:
            yield
        except BaseException:
            # Who is lost may have had the centre.
            with contextlib.suppress(tf.errors.OpError):
                self._method._finish(last=True)
                self._method.to_model()
            raise
