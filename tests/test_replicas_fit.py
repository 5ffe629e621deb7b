"""Replicas on three devices of this process, and `fit` as Keras has it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import slow
from replica_cases import DEVICES
from replica_cases import data
from replica_cases import network

from tf_convpar import replicas

METHODS = ["AsyncEASGD", "DownpourSGD", "ParallelSGD", "SyncEASGD", "SyncSGD"]
# As those, by other rules, which test_replicas_rules.py has.
OTHERS = [
    "AsyncMEASGD",
    "AsyncMSGD",
    "AsyncSGD",
    "HogwildEASGD",
    "HogwildSGD",
    "RoundRobinEASGD",
]


@pytest.mark.parametrize(
    "kind",
    [*METHODS, *(pytest.param(o, marks=pytest.mark.slow) for o in OTHERS)],
)
def test_every_method_learns(kind):
    x, y = data()
    model = network()
    before = model.evaluate(x, y, verbose=0)[0]
    method = getattr(replicas, kind)(model, devices=DEVICES)
    epochs = 12 if kind == "RoundRobinEASGD" else 4
    history = method.fit(
        x, y, batch_size=8, epochs=epochs, validation_data=(x, y), verbose=0
    ).history
    assert set(history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert len(history["loss"]) == epochs
    assert history["val_loss"][-1] < 0.7 * before
    assert history["loss"][-1] < history["loss"][0]
    # The model itself holds the centre.
    assert model.evaluate(x, y, verbose=0)[0] == pytest.approx(
        history["val_loss"][-1], rel=1e-5
    )
    if hasattr(method, "arrivals"):
        assert {a.replica for a in method.arrivals} == {0, 1, 2}


def test_validated_epochs_are_those_of_keras():
    x, y = data()
    model = network()
    method = replicas.SyncSGD(model, devices=DEVICES)
    for freq, wanted in ((2, [1]), ([1, 3], [0, 2])):
        losses = []

        class Losses(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs, losses=losses):
                losses.append("val_loss" in logs)

        method.fit(
            *(x, y),
            batch_size=8,
            epochs=3,
            steps_per_epoch=1,
            validation_data=(x, y),
            validation_freq=freq,
            callbacks=[Losses()],
            verbose=0,
        )
        assert np.flatnonzero(losses).tolist() == wanted
    with pytest.raises(ValueError, match="list or int"):
        method.fit(x, y, validation_data=(x, y), validation_freq="2", verbose=0)


def test_sync_sgd_is_one_device_with_the_whole_batch():
    x, y = data()
    plain, ours = network(), network()
    plain.fit(x, y, batch_size=24, epochs=2, shuffle=False, verbose=0)
    # Every replica's next batch is its part of the next whole one.
    order = np.arange(192).reshape(-1, 3, 8).transpose(1, 0, 2).ravel()
    replicas.SyncSGD(ours, devices=DEVICES).fit(
        x[order], y[order], batch_size=8, epochs=2, shuffle=False, verbose=0
    )
    for a, b in zip(plain.get_weights(), ours.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
    assert not np.allclose(ours.get_weights()[0], network().get_weights()[0])


def test_parallel_sgd_on_one_shard_is_sgd():
    x, y = data()
    plain, ours = network(), network()
    plain.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    replicas.ParallelSGD(ours, devices=["CPU:1"]).fit(
        x, y, batch_size=16, epochs=2, shuffle=False, verbose=0
    )
    for a, b in zip(plain.get_weights(), ours.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_sync_easgd_gives_the_same_numbers_every_time():
    x, y = data()
    found = []
    for _ in range(3):
        model = network(extra=[keras.layers.Dropout(0.3, seed=5)])
        replicas.SyncEASGD(model, devices=DEVICES).fit(
            x, y, batch_size=8, epochs=2, verbose=0
        )
        found.append(np.concatenate([w.ravel() for w in model.get_weights()]))
    for again in found[1:]:
        np.testing.assert_array_equal(again, found[0])


def test_metrics_are_of_all_replicas():
    """With a learning rate of nothing they are those of the data."""
    x, y = data()
    model = network(keras.optimizers.SGD(1e-12))
    loss, accuracy = model.evaluate(x, y, verbose=0)
    history = replicas.SyncSGD(model, devices=DEVICES).fit(
        x, y, batch_size=8, epochs=2, verbose=0
    )
    for epoch in range(2):
        assert history.history["loss"][epoch] == pytest.approx(loss, rel=1e-5)
        assert history.history["accuracy"][epoch] == pytest.approx(accuracy)


def test_replicas_differ_in_data_and_in_masks():
    x, y = data()
    model = network(extra=[keras.layers.Dropout(0.5)])
    method = replicas.ParallelSGD(model, devices=DEVICES)
    method.fit(x, y, batch_size=8, epochs=1, verbose=0)
    weights = [r.weights.numpy() for r in method.replicas]
    assert not np.allclose(weights[0], weights[1])
    same = np.tile(x[:8], (24, 1, 1, 1)), np.tile(y[:8], 24)
    model = network(extra=[keras.layers.Dropout(0.5)])
    method = replicas.ParallelSGD(model, devices=DEVICES)
    method.fit(*same, batch_size=8, epochs=1, shuffle=False, verbose=0)
    weights = [r.weights.numpy() for r in method.replicas]
    assert not np.allclose(weights[0], weights[1])


def test_moving_averages_reach_the_model():
    x, y = data()
    model = network(extra=[keras.layers.BatchNormalization()])
    before = [v.numpy() for v in model.layers[1].non_trainable_variables]
    replicas.SyncEASGD(model, devices=DEVICES).fit(
        x, y, batch_size=8, epochs=2, verbose=0
    )
    after = [v.numpy() for v in model.layers[1].non_trainable_variables]
    assert all(
        np.abs(a - b).max() > 1e-3 for a, b in zip(before, after, strict=True)
    )


def batches(x, y, size=8):
    while True:
        for i in range(0, len(x), size):
            yield x[i : i + size], y[i : i + size]


@pytest.mark.parametrize(
    "kind", ["SyncSGD", pytest.param("AsyncEASGD", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "form", [slow("dataset"), "generator", slow("python dataset")]
)
def test_data_of_any_kind(kind, form):
    x, y = data()
    model = network()
    before = model.evaluate(x, y, verbose=0)[0]
    given = {
        "dataset": tf.data.Dataset.from_tensor_slices((x, y)).batch(8),
        "generator": batches(x, y),
        "python dataset": tf.data.Dataset.from_generator(
            lambda: batches(x, y),
            output_signature=(
                tf.TensorSpec((8, 8, 8, 1)),
                tf.TensorSpec((8,), tf.int64),
            ),
        ),
    }[form]
    method = getattr(replicas, kind)(model, devices=DEVICES)
    method.fit(given, batch_size=8, epochs=3, steps_per_epoch=16, verbose=0)
    assert model.evaluate(x, y, verbose=0)[0] < 0.8 * before


def test_files_are_read_where_the_replica_is(tmp_path):
    """Each replica opens the file by itself, and takes every third batch."""
    x, y = data(96)
    path = str(tmp_path / "images.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for image, label in zip(x, y, strict=True):
            writer.write(image.tobytes() + bytes([label]))

    def read(record):
        image = tf.io.decode_raw(tf.strings.substr(record, 0, 256), tf.float32)
        label = tf.io.decode_raw(tf.strings.substr(record, 256, 1), tf.uint8)
        return tf.reshape(image, (8, 8, 1)), label[0]

    dataset = tf.data.TFRecordDataset(path).map(read).batch(8)
    method = replicas.ParallelSGD(network(), devices=DEVICES)
    method.fit(dataset, batch_size=8, epochs=1, steps_per_epoch=2, verbose=0)
    for i, replica in enumerate(method.replicas):
        assert replica.data._iterator_resource.device.endswith(f"CPU:{i}")
    seen = [np.asarray(next(r.data)[0]) for r in method.replicas]
    # The third of each: batches 6, 7 and 8.
    for i, batch in enumerate(seen):
        np.testing.assert_array_equal(batch, x[8 * (6 + i) : 8 * (7 + i)])


def test_callbacks_change_the_rate_and_stop():
    x, y = data()
    model = network()
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.optimizer.learning_rate.assign(0.1 / (1 + epoch))

        def on_train_batch_end(self, batch, logs=None):
            seen.append((batch, logs["loss"]))

        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 1

    method = replicas.SyncSGD(model, devices=DEVICES)
    method.fit(x, y, batch_size=8, epochs=9, callbacks=[Watch()], verbose=0)
    assert len(method.model.history.epoch) == 2
    assert [batch for batch, _ in seen] == [*range(8)] * 2
    rate = float(method.centre.optimizers[0].learning_rate)
    assert rate == pytest.approx(0.05)


def test_a_model_is_saved_with_the_centre(tmp_path):
    x, y = data()
    method = replicas.AsyncSGD(network(), devices=DEVICES)
    method.fit(x, y, batch_size=8, epochs=1, verbose=0)
    method.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        loaded.predict(x, verbose=0), method.predict(x, verbose=0)
    )


def test_bad_arguments():
    x, y = data()
    with pytest.raises(ValueError, match="compiled.*Received"):
        replicas.SyncSGD(keras.Sequential([keras.layers.Dense(1)]))
    with pytest.raises(ValueError, match=r"rho \* learning rate.*Received"):
        replicas.SyncEASGD(network(), rho=7.0, devices=DEVICES)
    with pytest.raises(ValueError, match="SGD.*Received: Adam"):
        model = network(keras.optimizers.Adam())
        replicas.AsyncMSGD(model, devices=DEVICES).fit(x, y, verbose=0)
    with pytest.raises(ValueError, match="shares.*Received"):
        replicas.SyncSGD(network(), devices=DEVICES, shares=[1, 2])
    with pytest.raises(ValueError, match="n_fetch.*Received"):
        replicas.DownpourSGD(network(), n_fetch=3, n_push=2)
    with pytest.raises(ValueError, match="variant.*Received"):
        replicas.SyncEASGD(network(), variant=4)
    with pytest.raises(ValueError, match="one of.*Received"):
        replicas.SyncSGD(network(), devices=["CPU:0", "CPU:9"])
    with pytest.raises(ValueError, match="Received.*layer"):
        replicas.SyncSGD(network(keras.optimizers.Lamb()), devices=DEVICES)
    with pytest.raises(ValueError, match="at least 100 samples.*Received"):
        replicas.SyncSGD(network(), devices=DEVICES).fit(
            x, y, batch_size=100, verbose=0
        )
    for size in (0, -3, 2.5):
        with pytest.raises(ValueError, match=f"batch_size.*Received: {size}"):
            replicas.SyncSGD(network(), devices=DEVICES).fit(x, y, size)
    with pytest.raises(ValueError, match="steps_per_epoch.*Received"):
        replicas.SyncSGD(network(), devices=DEVICES).fit(batches(x, y))
    empty = keras.Sequential([keras.Input((2,)), keras.layers.ReLU()])
    empty.compile("sgd", "mse")
    with pytest.raises(ValueError, match="trainable weights.*Received"):
        replicas.SyncSGD(empty, devices=DEVICES).fit(
            np.ones((4, 2)), np.ones((4, 2)), batch_size=1
        )


def test_an_error_of_a_replica_is_raised():
    x, y = data()
    x[5] = 1e6

    class Strict(keras.layers.Layer):
        def call(self, x):
            tf.debugging.assert_less(x, 1e4, "not small")
            return x

    model = network(extra=[Strict()])
    with pytest.raises(tf.errors.InvalidArgumentError, match="not small"):
        replicas.AsyncSGD(model, devices=DEVICES).fit(
            x, y, batch_size=8, epochs=5, verbose=0
        )


@pytest.mark.parametrize(
    "kind", (replicas.SyncEASGD, replicas.AsyncSGD, replicas.DownpourSGD)
)
def test_a_second_call_traces_nothing(kind):
    x, y = data()
    method = kind(network(), devices=DEVICES)
    method.fit(x, y, batch_size=8, epochs=1, verbose=0)
    engine = method._engine
    functions = (
        [engine._function]
        if kind is replicas.SyncEASGD
        else [*engine._steps, engine._serve]
    )
    method.fit(x, y, batch_size=8, epochs=1, verbose=0)
    assert method._engine is engine
    assert {f.experimental_get_tracing_count() for f in functions} == {1}
    method.fit(x, y, batch_size=4, epochs=1, verbose=0)
    assert functions[0].experimental_get_tracing_count() == 2


@pytest.mark.parametrize("kind", (replicas.SyncSGD, replicas.RoundRobinEASGD))
def test_all_that_is_fed_is_learned_from(kind):
    x, y = data()
    taken = []

    def batches():
        for i in range(0, len(x), 8):
            taken.append(i)
            yield x[i : i + 8], y[i : i + 8]

    kind(network(), devices=DEVICES).fit(
        batches(), epochs=1, steps_per_epoch=2, verbose=0
    )
    assert len(taken) == 2 * (3 if kind is replicas.SyncSGD else 1)


@pytest.mark.slow
def test_a_message_for_each_variable():
    """They leave one after another, and the numbers are the same."""
    x, y = data()
    found, sent = [], []
    for packed in (True, False):
        model = network()
        method = replicas.RoundRobinEASGD(model, devices=DEVICES, packed=packed)
        method.fit(x, y, batch_size=8, epochs=1, verbose=0)
        found.append(model.get_weights())
        step = method._engine._steps[1].get_concrete_function(
            method._engine._answers[1],
            tf.constant(0.1),
            method.replicas[1].data,
        )
        sent.append(
            sum(
                a.op.device.endswith("CPU:1")
                and op.device.endswith("CPU:0")
                and op.type == "Identity"
                for op in step.graph.get_operations()
                for a in op.inputs
            )
        )
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)
    # Beside the state of metrics.
    assert [n - 1 for n in sent] == [1, len(model.trainable_variables)]


@pytest.mark.parametrize("fed", [slow(False), True])
def test_several_rounds_in_one_call_are_the_same_rounds(fed):
    x, y = data()
    found, ends = [], []
    for at_once in (1, 3):
        model = network(extra=[keras.layers.BatchNormalization()])
        model.compile(
            keras.optimizers.SGD(0.05, momentum=0.9),
            model.loss,
            metrics=["accuracy"],
            steps_per_execution=at_once,
        )
        steps = []
        seen = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda i, logs, to=steps: to.append(i)
        )
        method = replicas.SyncEASGD(model, devices=DEVICES)
        history = method.fit(
            *([batches(x, y)] if fed else [x, y]),
            batch_size=None if fed else 8,
            epochs=2,
            steps_per_epoch=7,
            callbacks=[seen],
            verbose=0,
        )
        found.append((model.get_weights(), history.history))
        ends.append(steps)
        assert model.optimizer.iterations == 14
    (weights, logs), (at_once, own) = found
    for a, b in zip(weights, at_once, strict=True):
        np.testing.assert_array_equal(a, b)
    assert logs == own
    # The last call has what is left; Keras gives the number of the last step.
    assert ends == [[*range(7)] * 2, [2, 5, 6] * 2]
