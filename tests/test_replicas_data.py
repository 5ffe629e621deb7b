"""Epochs of replicas end where the data does, and data that has no such end."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import slow
from replica_cases import DEVICES
from replica_cases import data
from replica_cases import network

from tf_convpar import replicas


class Counts(keras.callbacks.Callback):
    """Steps of each epoch."""

    def on_train_begin(self, logs=None):
        self.steps = []

    def on_epoch_begin(self, epoch, logs=None):
        self.steps.append(0)

    def on_train_batch_end(self, batch, logs=None):
        self.steps[-1] += 1


class Batches(keras.utils.PyDataset):
    """Batches of 8, which tells when it has come to an end."""

    def __init__(self, x, y):
        super().__init__()
        self.x, self.y, self.ended = x, y, 0

    def __len__(self):
        return len(self.x) // 8

    def __getitem__(self, i):
        return self.x[8 * i : 8 * i + 8], self.y[8 * i : 8 * i + 8]

    def on_epoch_end(self):
        self.ended += 1


def samples(count=192):
    return tf.data.Dataset.from_tensor_slices(data(count))


def of_python(count=192):
    """Which only this program can run, and whose length it does not know."""
    return tf.data.Dataset.from_generator(
        lambda: iter(samples(count).batch(8)),
        output_signature=samples().batch(8).element_spec,
    )


def known(batches):
    return tf.data.experimental.assert_cardinality(batches)


def steps(given, kind="SyncSGD", epochs=2, **options):
    """Steps of each epoch, without being told of any."""
    counts = Counts()
    method = getattr(replicas, kind)(network(), devices=DEVICES)
    method.fit(given, epochs=epochs, verbose=0, callbacks=[counts], **options)
    return counts.steps


@pytest.mark.parametrize(
    "form", ["known", "unknown", "python", "python dataset"]
)
def test_as_plain_keras_with_the_whole_batch(form, capsys):
    x, y = data()
    given = {
        "known": samples().batch(8),
        "unknown": samples().filter(lambda *_: True).batch(8),
        "python": of_python().apply(known(24)),
        "python dataset": Batches(x, y),
    }[form]
    plain, ours = network(), network()
    counts, own = Counts(), Counts()
    options = {"epochs": 2, "verbose": 0}
    expected = plain.fit(samples().batch(24), callbacks=[counts], **options)
    method = replicas.SyncSGD(ours, devices=DEVICES)
    found = method.fit(given, callbacks=[own], **options)
    assert own.steps == counts.steps == [8, 8]
    assert [replica.batch for replica in method.replicas] == [8, 8, 8]
    for name, values in expected.history.items():
        assert found.history[name] == pytest.approx(values, rel=1e-5), name
    for a, b in zip(plain.get_weights(), ours.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
    if form == "python dataset":
        assert given.ended == 1  # The second time as the next batch is asked.
    # Only one that does not know its length is gone through for it.
    assert ("Counting" in capsys.readouterr().out) == (form == "unknown")


@pytest.mark.slow
def test_the_end_of_what_is_shuffled_repeated_or_not_divisible():
    assert steps(samples().shuffle(192).batch(8)) == [8, 8]
    assert steps(samples().repeat(2).batch(8), epochs=1) == [16]
    # Thirteen batches of 8 and of the rest.
    assert steps(samples(100).batch(8)) == [4, 4]
    # A step has as many samples as it is told.
    assert steps(samples().batch(8), batch_size=16) == [4, 4]
    assert steps(samples().batch(8), steps_per_epoch=3) == [3, 3]


def test_steps_of_those_that_do_not_wait():
    """A step is one replica's."""
    assert steps(samples().batch(8), "AsyncSGD") == [24, 24]


@pytest.mark.slow
def test_data_whose_end_nobody_knows():
    x, y = data()
    for given in (
        samples().batch(8).repeat(),
        of_python(),
        iter(Batches(x, y)),
        (one for one in samples().batch(8)),
    ):
        with pytest.raises(
            ValueError, match=r"`steps_per_epoch`.*Received.*assert_card"
        ):
            steps(given)


def test_a_generator_that_ends_too_soon():
    """It would be asked for ever."""
    taken = (batch for batch in samples().batch(8))
    with pytest.raises(ValueError, match="generator that ended after 24.*few"):
        steps(taken, steps_per_epoch=5)
    taken = (batch for batch in samples().batch(8))
    with pytest.raises(ValueError, match="generator that ended after 24.*few"):
        steps(taken, "AsyncSGD", steps_per_epoch=20)


def test_too_little_data():
    few = samples(16).batch(8)
    with pytest.raises(ValueError, match="each of 3 replicas. Received: 2"):
        steps(few)
    with pytest.raises(ValueError, match="each of 3 replicas. Received: few"):
        steps(few.filter(lambda *_: True), steps_per_epoch=2)
    with pytest.raises(ValueError, match="that has batches. Received.*empty"):
        steps(samples().take(0).batch(8))
    scalars = tf.data.Dataset.from_tensor_slices((np.ones(8), np.ones(8)))
    with pytest.raises(ValueError, match="are batches.*Received.*scalars"):
        steps(scalars)


def logged(kind, x, y=None, **options):
    method = kind(network(), devices=DEVICES)
    history = method.fit(x, y, batch_size=8, epochs=2, verbose=0, **options)
    return history.history


def test_part_of_the_arrays_validates():
    """The last, before they are mixed, as with Keras."""
    x, y = data()
    kind = replicas.SyncSGD
    expected = logged(
        kind, x[:144], y[:144], validation_data=(x[144:], y[144:])
    )
    assert logged(kind, x, y, validation_split=0.25) == expected
    assert set(expected) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    weights = np.linspace(0, 1, 192).astype("float32")
    expected = logged(
        kind,
        x[:144],
        y[:144],
        sample_weight=weights[:144],
        validation_data=(x[144:], y[144:], weights[144:]),
    )
    found = logged(kind, x, y, sample_weight=weights, validation_split=0.25)
    assert found == expected
    with pytest.raises(ValueError, match="arrays.*Received: .*Dataset"):
        logged(kind, samples().batch(8), validation_split=0.5)
    with pytest.raises(ValueError, match="leaves samples.*0.999 of 192"):
        logged(kind, x, y, validation_split=0.999)


def test_steps_of_validation():
    x, y = data()
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    kind = replicas.SyncSGD
    few = logged(kind, x, y, validation_data=batches, validation_steps=2)
    first = (x[:32], y[:32])
    expected = logged(
        kind, x, y, validation_data=first, validation_batch_size=32
    )
    np.testing.assert_allclose(few["val_loss"], expected["val_loss"], rtol=1e-5)


@pytest.mark.parametrize(
    "given", [slow("arrays"), "dataset", "fed", slow("function")]
)
def test_classes_have_weights(given):
    x, y = data()
    weights = {1: 3.0}
    of_samples = np.where(y == 1, 3.0, 1.0).astype("float32")
    kind, options = replicas.SyncSGD, {"shuffle": False}
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    weighed = tf.data.Dataset.from_tensor_slices((x, y, of_samples)).batch(8)
    if given == "arrays":
        found = logged(kind, x, y, class_weight=weights, **options)
        expected = logged(kind, x, y, sample_weight=of_samples, **options)
    elif given == "dataset":
        found = logged(kind, batches, class_weight=weights)
        expected = logged(kind, weighed)
    elif given == "fed":
        found = logged(
            kind, iter(batches), class_weight=weights, steps_per_epoch=4
        )
        expected = logged(kind, iter(weighed), steps_per_epoch=4)
    else:

        def shard(context, of):
            count = context.num_input_pipelines
            return of.shard(count, context.input_pipeline_id)

        found = logged(
            kind,
            lambda c: shard(c, batches_in_graph(x, y)),
            class_weight=weights,
        )
        expected = logged(kind, weighed)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6)
    with pytest.raises(ValueError, match="without weights of samples beside"):
        logged(kind, x, y, sample_weight=of_samples, class_weight=weights)


def batches_in_graph(x, y):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda c: [1, 2], "returns a tf.data.Dataset.*list"),
        (lambda c: tf.data.Dataset.range(8).batch(2), r"elements of \(x, y\)"),
        (lambda c: samples(), "elements are batches.*scalars"),
        (lambda c: samples().batch(8).take(0), "has batches.*empty on CPU:0"),
    ],
)
def test_functions_that_make_no_batches(make, message):
    with pytest.raises(ValueError, match=message):
        logged(replicas.SyncSGD, make)


def test_a_function_that_uses_tensors_of_the_chief():
    images = tf.zeros([200, 8, 8, 1])
    batches = tf.data.Dataset.from_tensors
    with pytest.raises(ValueError, match="makes all it uses.*from without"):
        logged(replicas.SyncSGD, lambda context: batches((images, images)))
