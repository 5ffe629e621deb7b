"""`fit` and the rest, which read like Keras."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import keras

from tf_convpar._compat.keras import is_validated
from tf_convpar._compat.keras import restored_epoch
from tf_convpar._compat.tensorflow import outside_scopes
from tf_convpar.cluster.joining import watched
from tf_convpar.replicas._fit_arguments import source_of
from tf_convpar.replicas._fit_arguments import split_off
from tf_convpar.replicas._survivors import Survivors
from tf_convpar.replicas.data import Source
from tf_convpar.replicas.epochs import Epochs
from tf_convpar.strategy.calls import call


class Method(Survivors):
    """A way to train several replicas of a model; see the methods.

    Args:
        model: As for `Replicated`, as are all others.
        **kwargs: As for `Replicated`.
    """

    # Whether steps are being made that the model does not have yet.
    _is_ahead = False

    @abc.abstractmethod
    def _steps(
        self, steps: int, source: Source
    ) -> Generator[tuple[int, Any], None, None]:
        """Makes an epoch's steps.

        Yields:
            How many steps a call made, between which nothing is logged, and
            the state of metrics after them.
        """

    def _finish(self, last: bool) -> None:  # noqa: B027 (most do nothing)
        """Brings the centre up to date, at the end of an epoch.

        Args:
            last: Whether no epoch follows.
        """

    def _resumed(
        self, source: Source, epoch: int, steps: int
    ) -> tuple[int, int]:
        """Goes on from what an earlier program has left, if anything.

        Args:
            source: Its data is placed.
            epoch: The one to begin with otherwise.
            steps: Of each epoch.

        Returns:
            Epoch, and steps of it that are made.
        """
        return epoch, 0

    def _keep(self, epoch: int, done: int, steps: int) -> None:  # noqa: B027
        """Called after steps: `done` of an epoch's are made."""

    def _over(self) -> None:  # noqa: B027 (most keep nothing)
        """Called when a training has come to its end."""

    def _reset_metrics(self, zero: Any) -> None:
        """Lets all replicas' metrics begin anew, with this state."""
        for replica in self.replicas:
            replica.metrics.assign(zero)

    def _per_step(self) -> int:
        """Samples of a step, as the progress bar counts them."""
        return sum(r.batch for r in self.replicas)

    @outside_scopes()
    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int | list[int] = 1,
    ) -> keras.callbacks.History:
        """Trains, as `keras.Model.fit` does.

        ```python
        history = SyncEASGD(model).fit(x, y, batch_size=64, epochs=3)
        ```

        Args:
            x: Arrays, which are cut into a shard for each replica and sent
                once; a `tf.data.Dataset`, which each replica reads where it
                is; a function that makes one of what a replica's machine has,
                of a `tf.distribute.InputContext`; or a generator or
                `PyDataset`, which the chief feeds.
            y: As for Keras.
            batch_size: Samples of a step of one replica, on average over them
                where `shares` differ. None for 32 of arrays, and for as many
                as an element of other data has, which is a batch.
            epochs: As for Keras.
            verbose: As for Keras.
            callbacks: As for Keras. They get the model.
            validation_split: As for Keras.
            validation_data: As for Keras; what is validated is the centre.
            shuffle: Whether samples of arrays come in random order.
            class_weight: As for Keras.
            sample_weight: As for Keras.
            initial_epoch: As for Keras.
            steps_per_epoch: Steps of an epoch; None for as many as the data
                has. Needed with a generator, and with a dataset that has no
                end, or that only Python can run and whose length is unknown.
            validation_steps: As for Keras.
            validation_batch_size: As for Keras.
            validation_freq: As for Keras: how many epochs, or which ones.

        Returns:
            Keras' history.

        Raises:
            ValueError: There are too few samples, steps are unknown, or a
                generator ends before them.
        """
        if validation_split and validation_data is None:
            parts = split_off((x, y, sample_weight), validation_split)
            (x, y, sample_weight), validation_data = parts
        source = source_of(
            x, y, sample_weight, shuffle, class_weight, self.devices
        )
        validation = {
            "batch_size": validation_batch_size or batch_size,
            "steps": validation_steps,
        }
        if batch_size is None:
            batch_size = source.size or 32
        samples = batch_size
        with call():
            with watched():
                self._survived(lambda: self._prepare(source, samples))
                steps = self._steps_of(source, steps_per_epoch)
            callbacks = self._callbacks(callbacks, verbose, epochs, steps)
            self.model.stop_training = False
            callbacks.on_train_begin()
            initial_epoch = restored_epoch(self.model) or initial_epoch

            def validate(epoch: int) -> dict[str, Any]:
                if validation_data is None or not is_validated(
                    self.model, epoch, validation_freq
                ):
                    return {}
                return self._validated(validation_data, callbacks, **validation)

            with watched(), self._ahead_of_model():
                self._survived(self._from_model)
                loop = Epochs(self, source, steps, callbacks, validate)
                logs = loop.run(initial_epoch, epochs)
            callbacks.on_train_end(logs)
        history: keras.callbacks.History = self.model.history
        return history

    def _callbacks(
        self, callbacks: Any, verbose: Any, epochs: int, steps: int
    ) -> keras.callbacks.CallbackList:
        """Keras' list of them, with its history and progress bar."""
        if isinstance(callbacks, keras.callbacks.CallbackList):
            return callbacks
        return keras.callbacks.CallbackList(
            callbacks,
            add_history=True,
            add_progbar=verbose != 0,
            verbose=1 if verbose == "auto" else verbose,
            epochs=epochs,
            steps=steps,
            model=self.model,
        )

    @contextlib.contextmanager
    def _ahead_of_model(self) -> Iterator[None]:
        """Context of steps, after which the model may lack what is learned."""
        self._is_ahead = True
        try:
            yield
        finally:
            self._is_ahead = False

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """`keras.Model.evaluate` with the centre's weights."""
        return self._with_centre(lambda m: m.evaluate(*args, **kwargs))

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """`keras.Model.predict` with the centre's weights."""
        return self._with_centre(lambda m: m.predict(*args, **kwargs))

    def save(self, *args: Any, **kwargs: Any) -> None:
        """`keras.Model.save` with the centre's weights."""
        self._with_centre(lambda m: m.save(*args, **kwargs))

    @outside_scopes()
    def _with_centre(self, use: Callable[[keras.Model], Any]) -> Any:
        """Uses the model with the centre's weights, whoever is lost.

        It runs on the chief, but TensorFlow asks all of its cluster.
        """

        def call() -> Any:
            # After `fit` the model has them, or others that it was given
            # since, such as the best ones by EarlyStopping.
            if self._is_ahead:
                self.to_model()
            return use(self.model)

        with watched():
            return self._survived(call)

    def _validated(
        self, data: Any, callbacks: Any, **options: Any
    ) -> dict[str, Any]:
        """Loss and metrics of the centre, as Keras names them in an epoch."""
        x, y, weights = keras.utils.unpack_x_y_sample_weight(
            data if isinstance(data, list | tuple) else (data,)
        )
        results = self._survived(
            lambda: self.model.evaluate(
                x,
                y,
                sample_weight=weights,
                callbacks=callbacks,
                verbose=0,
                return_dict=True,
                **options,
            )
        )
        return {f"val_{name}": value for name, value in results.items()}

    def _steps_of(self, source: Source, given: int | None) -> int:
        if given is not None:
            return given
        samples = source.samples()
        if samples is None:
            raise ValueError(
                "Expected `steps_per_epoch` with data of unknown length, or "
                "without an end. Received: steps_per_epoch=None. A dataset "
                "knows its length after "
                "`.apply(tf.data.experimental.assert_cardinality(batches))`."
            )
        return max(1, samples // self._per_step())
