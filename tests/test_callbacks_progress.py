"""`Elastic` goes on in models whose variables the first step makes.

Numbers are those of plain Keras that was never interrupted.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import slow
from replica_cases import LOSS
from replica_cases import data
from replica_cases import network

import tf_convpar as convpar
from tf_convpar.callbacks import snapshot_file
from tf_convpar.callbacks.progress import Progress
from tf_convpar.callbacks.snapshot import state_of

OPTIONS = {"batch_size": 16, "epochs": 3, "shuffle": False, "verbose": 0}
STEPS = 6
LAYERS = keras.layers


def sequential():
    model = keras.Sequential(
        [
            LAYERS.Conv2D(4, 3, activation="relu"),
            LAYERS.BatchNormalization(),
            LAYERS.Dropout(0.3, seed=4),
            LAYERS.Flatten(),
            LAYERS.Dense(2),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        LOSS,
        metrics=["accuracy"],
        steps_per_execution=2,
    )
    return model


class Late(keras.Model):
    """Builds itself at its first call."""

    def __init__(self):
        super().__init__()
        self.conv, self.flat = LAYERS.Conv2D(4, 3), LAYERS.Flatten()
        self.dense = LAYERS.Dense(2)

    def call(self, x):
        return self.dense(self.flat(self.conv(x)))


def subclass():
    model = Late()
    model.compile(keras.optimizers.Adam(0.01), LOSS)
    return model


class Own(keras.Model):
    """Is built, but its optimizer is not, as Keras cannot know what trains."""

    def compile(self, optimizer):
        super().compile(optimizer)
        self.loss_metric = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.loss_metric]

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = LOSS(y, self(x, training=True))
        weights = self.trainable_weights
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )
        self.loss_metric.update_state(loss)
        return {"loss": self.loss_metric.result()}


def own():
    plain = network()
    model = Own(plain.inputs, plain.outputs)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9))
    return model


class Losses(keras.callbacks.Callback):
    """Mean loss of each epoch up to each step; may end `fit` in one."""

    def __init__(self, end=None):
        super().__init__()
        self.end, self.found = end, {}

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if logs:
            self.found[self.epoch, batch + 1] = float(logs["loss"])
        if (self.epoch, batch + 1) == self.end:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("make", "split"),
    [slow((sequential, True)), slow((subclass, False)), (own, True)],
)
def test_variables_that_the_first_step_makes(make, split, strategy, tmp_path):
    x, y = data(16 * STEPS)
    models, losses = [], []
    for end in (None, (1, 4), ()):
        # As in a program that is started again.
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(1)
        callbacks = [Losses(end)]
        if end is None:
            model = make()
        else:
            with strategy.scope():
                model = make()
                if split:
                    model = convpar.parallelize(model, "equal")
            elastic = convpar.callbacks.Elastic(tmp_path, every=1e-3)
            callbacks.insert(0, elastic)
        if end:
            with pytest.raises(KeyboardInterrupt):
                model.fit(x, y, callbacks=callbacks, **OPTIONS)
            *_, (epoch, done) = snapshot_file.load(tmp_path)
            assert done > 0
        else:
            model.fit(x, y, callbacks=callbacks, **OPTIONS)
            models.append(model)
            losses.append(callbacks[-1].found)
    assert not list(tmp_path.iterdir())
    for a, b in zip(*map(state_of, models), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)
    # The steps that are left, and metrics of these alone.
    expected, found = losses
    assert list(found) == [at for at in expected if at > (epoch, done)]
    for (e, step), mean in found.items():
        total, before = step * expected[e, step], 0
        if e == epoch:
            before = done
            total -= done * expected.get((e, done), 0)
        assert mean == pytest.approx(total / (step - before), rel=1e-3)


def write(folder, model, place, without=0, **more):
    """A copy of a model, without some first variables, and with others."""
    state = {v.path: np.asarray(v) for v in state_of(model)[without:]} | more
    snapshot_file.save(folder, list(state), list(state.values()), place)


@pytest.mark.slow
def test_a_copy_of_another_model_that_the_first_step_builds(strategy, tmp_path):
    x, y = data(32)
    with strategy.scope():
        model = sequential()
    elastic = convpar.callbacks.Elastic(tmp_path)
    for without, first in (
        # It is known before a step, or after it.
        (1, "'seed_generator/seed_generator_state'"),
        (0, "'sequential/conv2d/kernel'"),
    ):
        write(tmp_path, model, (1, 1), without, kernel=np.ones(3))
        assert not model.built
        with pytest.raises(
            ValueError,
            match=f"this model.*place of {first}.*Delete it to begin",
        ):
            model.fit(x, y, callbacks=[elastic], **OPTIONS)
        assert snapshot_file.load(tmp_path)[2] == (1, 1)


def test_a_copy_that_no_step_takes_over_stays(strategy, tmp_path):
    """There are no slots to give it to."""
    x, y = data(32)
    with strategy.scope():
        model = own()
    write(tmp_path, model, (3, 1), momentum=np.ones(2))
    elastic = convpar.callbacks.Elastic(tmp_path)
    with pytest.warns(RuntimeWarning, match="more than 3 epochs.*stays"):
        model.fit(x, y, callbacks=[elastic], **OPTIONS)
    assert model.built
    assert snapshot_file.load(tmp_path)[2] == (3, 1)


def test_a_place_is_that_of_the_weights(strategy, tmp_path):
    """They have learned from batches that are still to be passed over."""
    with strategy.scope():
        model = network()
    write(tmp_path, model, (1, 3))
    progress = Progress()
    progress.resume(model, tmp_path)
    assert (progress.place, progress.waits) == ((1, 3), False)
    progress.begin_epoch(1)
    for _ in range(3):
        assert progress.passes_over(model, 1)
        assert progress.place == (1, 3)
    assert not progress.passes_over(model, 1)
    progress.step(1)
    assert (progress.place, progress.stepped) == ((1, 4), True)
