"""DoRA, as LoRA: where it is on, a layer computes with what Keras makes.

Keras has it since https://github.com/keras-team/keras/pull/23382 (dense) and
/23383 (convolutions). Older ones are given it here, in the same form: weights
`dora_...`, a flag `dora_enabled`, and a property that makes the kernel.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from by_samples import EVERY
from by_samples import slopes
from cases import by_turns
from test_regions import rule_of

import tf_convpar as convpar
from tf_convpar._compat.keras import is_adapted

L = keras.layers


def decomposed(layer, kernel):
    """Magnitude times direction (Liu et al., 2024, equation 5)."""
    if not getattr(layer, "dora_enabled", False):
        return kernel
    low = keras.ops.matmul(layer.dora_kernel_a, layer.dora_kernel_b)
    direction = keras.ops.add(kernel, low)
    axes = tuple(range(len(direction.shape) - 1))
    norm = keras.ops.sqrt(keras.ops.sum(direction**2, axis=axes))
    return layer.dora_magnitude * direction / keras.ops.stop_gradient(norm)


def enable(layer, rank):
    kernel = layer._kernel
    layer._tracker.unlock()
    layer.dora_kernel_a = layer.add_weight(
        name="dora_kernel_a",
        shape=(*kernel.shape[:-1], rank),
        initializer="he_uniform",
        dtype="float32",
    )
    layer.dora_kernel_b = layer.add_weight(
        name="dora_kernel_b",
        shape=(rank, kernel.shape[-1]),
        initializer="zeros",
        dtype="float32",
    )
    layer.dora_magnitude = layer.add_weight(
        name="dora_magnitude",
        shape=kernel.shape[-1:],
        initializer="ones",
        dtype="float32",
    )
    kernel.trainable = False
    layer._tracker.lock()
    layer.dora_enabled = True


@pytest.fixture(autouse=True)
def keras_with_dora(monkeypatch):
    for kind in (L.Conv2D, L.Dense):
        if not hasattr(kind, "enable_dora"):
            owner = next(k for k in kind.__mro__ if "kernel" in vars(k))
            made = vars(owner)["kernel"].fget
            own = property(lambda self, made=made: decomposed(self, made(self)))
            monkeypatch.setattr(owner, "kernel", own)
            monkeypatch.setattr(owner, "enable_dora", enable, raising=False)


def turn_on(layer):
    """DoRA, with weights that make a difference."""
    keras.utils.set_random_seed(3)
    layer.enable_dora(2)
    rng = np.random.default_rng(4)
    for weight in (layer.dora_kernel_b, layer.dora_magnitude):
        weight.assign(rng.uniform(0.5, 1.5, weight.shape))


def network():
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            L.Conv2D(12, 3, padding="same", name="first"),
            L.Conv2D(12, 3, activation="relu", name="second"),
            L.Flatten(),
            L.Dense(3, name="scores"),
        ]
    )


FILTERS = {".*": (6, 4, 2)}


@pytest.mark.parametrize(
    ("names", "plan", "before"),
    by_turns(
        [["second"], ["scores"], ["first", "scores"]],
        [FILTERS, EVERY],
        [True, False, False],
    ),
)
def test_the_same_as_plain_keras(names, plan, before, strategy):
    """Turned on before or after the model is made parallel."""
    plain = network()
    x = np.random.default_rng(0).normal(size=(6, 8, 8, 3)).astype("float32")
    without = np.asarray(plain(x))
    if before:
        for name in names:
            turn_on(plain.get_layer(name))
    with strategy.scope():
        parallel = convpar.parallelize(plain, plan)
    if not before:
        for model in (plain, parallel):
            for name in names:
                turn_on(model.get_layer(name))
    assert all(is_adapted(parallel.get_layer(name)) for name in names)
    spread = [parallel.get_layer(n).is_spread for n in ("first", "second")]
    assert spread == [True, True]
    ours, theirs = slopes(parallel, x), slopes(plain, x)
    # Two for the magnitude and the low rank of each, and what else learns.
    assert len(ours) == len(theirs) == 2 + 6 + 2 * len(names)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    assert np.abs(ours[0] - without).max() > 0.1


def test_rows_of_a_dense_kernel_are_cut_without_it_only(strategy):
    found = []
    for on in (False, True):
        plain = network()
        if on:
            turn_on(plain.get_layer("scores"))
        with strategy.scope():
            parallel = convpar.parallelize(plain, FILTERS)
        found.append(rule_of(parallel.get_layer("scores")) is not None)
    assert found == [True, False]


def test_it_trains_as_plain_keras_does(strategy):
    x = np.random.default_rng(0).normal(size=(8, 8, 8, 3)).astype("float32")
    y = np.arange(8) % 3
    losses = []
    for parallel in (False, True):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = network()
            if parallel:
                model = convpar.parallelize(model, FILTERS)
            for name in ("second", "scores"):
                turn_on(model.get_layer(name))
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.Adam(0.01), loss)
        fitted = model.fit(x, y, epochs=4, batch_size=8, verbose=0)
        losses.append(fitted.history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-4)
    assert losses[0][-1] < losses[0][0]


def test_files_hold_what_it_makes(strategy, tmp_path):
    """An export traces the Keras layer; so do predictions of a merged copy."""
    with strategy.scope():
        model = convpar.parallelize(network(), FILTERS)
    for name in ("second", "scores"):
        turn_on(model.get_layer(name))
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("float32")
    expected = np.asarray(model(x))
    convpar.export(model, tmp_path / "served")
    served = tf.saved_model.load(str(tmp_path / "served"))
    np.testing.assert_allclose(served.serve(x), expected, rtol=1e-4, atol=1e-5)
    merged = convpar.merge(model)
    np.testing.assert_allclose(merged(x), expected, rtol=1e-4, atol=1e-5)
