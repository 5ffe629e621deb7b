"""One replica learns what Keras learns, whatever the model and optimizer."""

import keras
import numpy as np
import pytest
from cases import by_turns
from replica_cases import DEVICES
from replica_cases import LOSS
from replica_cases import data
from replica_cases import network

from tf_convpar import replicas
from tf_convpar.callbacks import Monitor

FIT = {"batch_size": 16, "shuffle": False, "verbose": 0}
L = keras.layers


def assert_alike(one, other, rtol=1e-4):
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=2e-6)


class Divergence(L.Layer):
    """Adds a loss, as the bottleneck of a variational model does."""

    def call(self, x):
        self.add_loss(0.01 * keras.ops.mean(keras.ops.square(x)))
        return x


@pytest.mark.parametrize(
    ("kind", "algorithm"), by_turns(["SyncSGD", "ParallelSGD"], [None, "auto"])
)
def test_losses_of_layers_count(kind, algorithm):
    x, y = data(64)
    extra = [
        L.Conv2D(4, 3, activity_regularizer=keras.regularizers.L2(0.1)),
        Divergence(),
    ]
    plain = network(extra=extra)
    model = keras.models.clone_model(plain)
    model.set_weights(plain.get_weights())
    model.compile(keras.optimizers.SGD(0.05), LOSS, metrics=["accuracy"])
    method = getattr(replicas, kind)(
        model, devices=DEVICES[:1], algorithm=algorithm
    )
    histories = [f(x, y, **FIT).history for f in (plain.fit, method.fit)]
    assert histories[1]["loss"] == pytest.approx(histories[0]["loss"], rel=1e-4)
    assert_alike(plain, model)


@pytest.mark.parametrize(
    "options", [{"gradient_accumulation_steps": 2}, {"loss_scale_factor": 128}]
)
def test_optimizers_of_keras(options):
    x, y = data(64)
    plain, model = (
        network(keras.optimizers.Adam(0.01, **options)) for _ in range(2)
    )
    replicas.SyncSGD(model, devices=DEVICES[:1]).fit(x, y, **FIT)
    plain.fit(x, y, **FIT)
    assert_alike(plain, model)
    assert int(model.optimizer.iterations) == int(plain.optimizer.iterations)


class Counts(L.Layer):
    """A layer with a state that is neither a weight nor a seed's."""

    def build(self, shape):
        self.calls = self.add_weight(
            name="calls",
            shape=(),
            dtype="int32",
            initializer="zeros",
            trainable=False,
        )

    def call(self, x, training=False):
        if training:
            self.calls.assign_add(1)
        return x


@pytest.mark.parametrize("devices", [DEVICES[:1], DEVICES[:2]])
def test_states_that_are_no_seeds(devices):
    x, y = data(64)
    model = network(extra=[Counts(), L.Dropout(0.5)])
    first = model.get_weights()
    steps = 64 // 16 // len(devices)
    replicas.SyncSGD(model, devices=devices).fit(x, y, **FIT)
    assert int(model.layers[1].calls) == steps
    seeds = [v for v in model.variables if v.name == "seed_generator_state"]
    assert len(seeds) == 1 and len(first) == len(model.get_weights())


def test_metrics_with_a_value_for_each_class():
    x, y = data(64)
    labels = np.eye(2, dtype="float32")[y]
    plain, model = network(), network()
    for each in (plain, model):
        each.compile(
            keras.optimizers.SGD(0.05),
            keras.losses.CategoricalCrossentropy(from_logits=True),
            metrics=[keras.metrics.F1Score()],
        )
    method = replicas.SyncSGD(model, devices=DEVICES[:1])
    scores = [
        f(x, labels, callbacks=[Monitor(every=1e-6)], **FIT).history["f1_score"]
        for f in (plain.fit, method.fit)
    ]
    np.testing.assert_allclose(*np.asarray(scores), rtol=1e-5)
    assert np.shape(scores[1]) == (1, 2)


def test_the_best_weights_are_kept(tmp_path):
    """`EarlyStopping` sets them when training is over."""
    x, y = data(64)
    model = network(keras.optimizers.SGD(0.5))
    method = replicas.SyncSGD(model, devices=DEVICES)
    best = []

    class Worsens(keras.callbacks.Callback):
        """The first epoch is the best one."""

        def on_epoch_end(self, epoch, logs):
            logs["badness"] = epoch
            if epoch == 0:
                best.extend(self.model.get_weights())

    stopping = keras.callbacks.EarlyStopping(
        "badness", mode="min", patience=2, restore_best_weights=True
    )
    method.fit(x, y, epochs=9, callbacks=[Worsens(), stopping], **FIT)
    method.evaluate(x, y, verbose=0)
    method.save(tmp_path / "best.keras")
    saved = keras.models.load_model(tmp_path / "best.keras")
    for weights in (model.get_weights(), saved.get_weights()):
        for a, b in zip(best, weights, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_rate_that_warms_up():
    """The elastic force is that of the rate that there is now."""
    x, y = data()
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, 100, warmup_target=0.1, warmup_steps=30
    )
    model = network(keras.optimizers.SGD(schedule))
    before = model.evaluate(x, y, verbose=0)[0]
    method = replicas.SyncEASGD(model, devices=DEVICES)
    history = method.fit(x, y, batch_size=8, epochs=12, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert model.evaluate(x, y, verbose=0)[0] < 0.7 * before


class Own(keras.Sequential):
    def train_step(self, data):
        raise AssertionError("Nobody asked.")


def test_what_one_vector_cannot_have_is_refused():
    own = Own(network().layers)
    own.compile("sgd", LOSS)
    with pytest.raises(ValueError, match=r"Keras' own `train_step`.*Own"):
        replicas.SyncSGD(own, devices=DEVICES)
    bounded = network(extra=[L.Conv2D(2, 3, kernel_constraint="max_norm")])
    with pytest.raises(ValueError, match="without constraints.*kernel"):
        replicas.SyncSGD(bounded, devices=DEVICES)
    decays = keras.optimizers.AdamW(0.01)
    decays.exclude_from_weight_decay(var_names=["bias"])
    averages = keras.optimizers.SGD(0.1, use_ema=True)
    for optimizer in (decays, averages):
        with pytest.raises(ValueError, match="treats each weight alone"):
            replicas.SyncSGD(network(optimizer), devices=DEVICES)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.7, 10, 0.9)
    with pytest.raises(ValueError, match="one learning rate.*Exponential"):
        replicas.DiLoCo(
            network(),
            outer=keras.optimizers.SGD(schedule),
            devices=DEVICES,
        )


class OldLoss(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return 3 * LOSS(y, y_pred, sample_weight)


@pytest.mark.parametrize("algorithm", [None, "auto"])
def test_losses_of_older_programs(algorithm):
    x, y = data(64)
    plain, model = (OldLoss(network().layers) for _ in range(2))
    for each in (plain, model):
        each.compile("sgd", LOSS)
    replicas.SyncSGD(model, devices=DEVICES[:1], algorithm=algorithm).fit(
        x, y, **FIT
    )
    plain.fit(x, y, **FIT)
    assert_alike(plain, model)
