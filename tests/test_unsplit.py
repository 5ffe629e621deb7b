"""Why convolutions stay whole: the true reason, and a cure that cures."""

import importlib
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_convpar as convpar
from tf_convpar.sharding import HowSplit
from tf_convpar.sharding import relayout
from tf_convpar.sharding import unsplit_convolutions

L = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:.*nothing is split")
DEVICES = ["CPU:0", "CPU:1", "CPU:2"]


class Own(L.Conv2D):
    """Computes as it did."""


class Calls(L.Conv2D):
    def call(self, inputs):
        return super().call(keras.ops.flip(inputs, axis=1))


class Convolves(L.Conv2D):
    def convolution_op(self, inputs, kernel):
        return super().convolution_op(inputs, 2 * kernel)


class Derived(convpar.ConvParallel2D):
    def call(self, inputs):
        return super().call(keras.ops.flip(inputs, axis=1))


@pytest.mark.filterwarnings("ignore:.*Derived")
def test_a_class_made_of_a_parallel_one_is_merged_and_laid_out(strategy):
    """As `Elastic` does it; the class stays, and is on the chief from then."""
    with strategy.scope():
        model = model_of(Derived(6, 3, name="derived"), L.Conv2D(4, 3))
        model = convpar.parallelize(model)
    x = tf.random.stateless_normal((2, 8, 8, 3), [1, 2])
    expected = tf.convert_to_tensor(model(x))
    merged = convpar.merge(model)
    assert type(merged.layers[0]) is Derived
    np.testing.assert_allclose(merged(x), expected, rtol=1e-4, atol=1e-5)
    how = HowSplit.of(model, strategy.devices)
    strategy.change_devices(strategy.devices[:2])
    relayout(model, merged, how, strategy)
    np.testing.assert_allclose(model(x), expected, rtol=1e-4, atol=1e-5)
    assert type(model.layers[0]) is Derived
    assert {s.device[-5:] for s in model.layers[1].kernel.value.shards} == {
        *("CPU:0", "CPU:1")
    }


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A package that is installed, and of somebody else."""
    folder = tmp_path / "lib/site-packages"
    (folder / "others").mkdir(parents=True)
    (folder / "others/__init__.py").write_text(
        "import keras\n\n\n"
        "class Theirs(keras.layers.Conv2D):\n"
        "    def call(self, inputs):\n"
        "        return 2 * super().call(inputs)\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module("others")
    del sys.modules["others"]


def model_of(*layers, channels=3):
    return keras.Sequential(
        [keras.Input((8, 8, channels)), *layers], name="network"
    )


def reasons(model):
    return {one.layer.name: one.reason for one in unsplit_convolutions(model)}


def reason(layer, plan=None, channels=3, **options):
    """Of a layer that is called alone."""
    strategy = convpar.ConvParallelStrategy(devices=DEVICES, **options)
    with strategy.scope():
        model = convpar.parallelize(
            model_of(layer, channels=channels), plan, verbose=False
        )
    (found,) = reasons(model).values()
    return found


def test_too_few_filters_for_the_devices():
    few = "for 3 devices: `plan={'x': 'samples'}` splits its samples"
    one = L.Conv2D(1, 3, name="x")
    assert reason(one) == f"has 1 filter {few}"
    assert reason(L.Conv2DTranspose(1, 3, name="x")).startswith("has 1 filter")
    assert reason(L.SeparableConv2D(1, 3, name="x")).startswith("has 1 filter")
    two = L.Conv2D(2, 3, name="x")
    assert reason(two, shares=(9, 1, 1)) == f"has 2 filters {few}"
    assert reason(two, {"x": (9, 1, 1)}) == f"has 2 filters {few}"
    depthwise = L.DepthwiseConv2D(3, name="x")
    assert reason(depthwise, channels=1) == f"has 1 channel {few}"
    assert reason(Derived(1, 3, name="x")) == (
        "has 1 filter for 3 devices: `split='samples'` splits its samples"
    )


def test_what_is_said_of_few_filters_splits_them(strategy):
    x = np.random.default_rng(0).normal(size=(6, 8, 8, 3))
    plain = model_of(L.Conv2D(1, 3, name="x"))
    with strategy.scope():
        by_plan = convpar.parallelize(plain, {"x": "samples"})
        own = model_of(Derived(1, 3, name="x", split="samples"))
    for model in (by_plan, own):
        assert model.get_layer("x").is_spread and not reasons(model)
    np.testing.assert_allclose(
        by_plan.predict(x, verbose=0), plain.predict(x, verbose=0), 1e-5, 1e-6
    )


def test_shares_that_give_all_to_the_chief():
    why = "has all of its work on the chief, by the shares"
    layer = L.Conv2D(6, 3, name="x")
    assert reason(layer, {"x": (6, 0, 0)}) == f"{why} (6, 0, 0)"
    assert reason(layer, shares=(1, 0, 0)) == f"{why} (1, 0, 0)"
    assert reason(layer, **{"plan": {"x": (6, 0, 0)}}) == f"{why} (6, 0, 0)"
    by_samples = {"x": {"split": "samples", "shards": (1, 0, 0)}}
    assert reason(layer, by_samples) == f"{why} (1, 0, 0)"
    one = L.Conv2D(1, 3, name="x")
    assert reason(one, by_samples) == f"{why} (1, 0, 0)"


def test_plans_that_leave_it_to_the_chief():
    planned = "the plan leaves it to the chief"
    layer = L.Conv2D(6, 3, name="x")
    assert reason(layer, {"x": None}) == planned
    assert reason(layer, {"x": "chief"}) == planned
    strategy = convpar.ConvParallelStrategy(devices=DEVICES, plan={"x": None})
    with strategy.scope():
        own = model_of(convpar.ConvParallel2D(6, 3, name="x"))
        again = convpar.parallelize(model_of(layer))
    assert reasons(own) == reasons(again) == {"x": planned}


def test_what_was_made_otherwise(strategy):
    built = convpar.ConvParallel2D(6, 3, name="x")
    built.build((None, 8, 8, 3))
    alone = convpar.ConvParallelStrategy(devices=["CPU:0"])
    with strategy.scope():
        plain = model_of(L.Conv2D(6, 3, name="x"))
        outside = model_of(built)
        later = keras.Sequential([convpar.ConvParallel2D(6, 3, name="x")])
    with alone.scope():
        one = model_of(convpar.ConvParallel2D(6, 3, name="x"))
    for model, words in (
        (plain, "is a Conv2D of Keras: parallelize the model"),
        (outside, "was built outside of the strategy's scope: parallelize"),
        (later, "has no input shape yet"),
        (one, "has one device only"),
        (model_of(built), "in the scope of no ConvParallelStrategy"),
    ):
        (found,) = reasons(model).values()
        assert words in found


def test_classes_of_one_s_own_and_of_others(library):
    own = "is a class of your own, and may do anything"
    derive = "derive it from convpar.ConvParallel2D instead of keras.layers."
    assert reason(Own(6, 3)) == f"Own {own}: {derive}Conv2D"
    assert reason(Calls(6, 3)) == (
        f"Calls {own}: {derive}Conv2D, and leave the convolution to "
        "`super().call`"
    )
    # A parallel layer would not do what this one does.
    assert reason(Convolves(6, 3)) == (
        f"Convolves {own}: let it do its part before and after a Conv2D of "
        "Keras that it holds"
    )
    theirs = reason(library.Theirs(6, 3))
    assert theirs.startswith("Theirs is a class of others, and may do anything")
    assert "derive" not in theirs and "clone_function" in theirs


def test_what_is_said_of_one_s_own_class_splits_it(strategy):
    x = np.random.default_rng(0).normal(size=(4, 8, 8, 3))
    plain = model_of(Calls(6, 3, name="x"))
    with strategy.scope():
        own = model_of(Derived(6, 3, name="x"))
    own.set_weights(plain.get_weights())
    assert own.get_layer("x").is_spread and not reasons(own)
    np.testing.assert_allclose(
        own.predict(x, verbose=0), plain.predict(x, verbose=0), 1e-5, 1e-6
    )


def test_what_is_said_of_the_class_of_others_splits_it(strategy, library):
    """Where it does the same, and here where the rest is a layer as well."""
    x = np.random.default_rng(0).normal(size=(4, 8, 8, 3))
    plain = model_of(library.Theirs(6, 3, name="x"), L.Flatten())
    swapped = keras.models.clone_model(
        plain,
        clone_function=lambda layer: (
            L.Conv2D.from_config(layer.get_config())
            if type(layer) is library.Theirs
            else layer.__class__.from_config(layer.get_config())
        ),
    )
    swapped.set_weights(plain.get_weights())
    with strategy.scope():
        model = convpar.parallelize(swapped)
    assert model.get_layer("x").is_spread
    np.testing.assert_allclose(
        2 * model.predict(x, verbose=0), plain.predict(x, verbose=0), 1e-5, 1e-6
    )


def test_layers_of_keras_that_hold_it():
    over_time = L.TimeDistributed(L.Conv2D(6, 3, name="x"))
    strategy = convpar.ConvParallelStrategy(devices=DEVICES)
    with strategy.scope():
        model = convpar.parallelize(
            keras.Sequential([keras.Input((2, 8, 8, 3)), over_time])
        )
    assert reasons(model)["x"].endswith(
        "its own: write the loop over its inputs out, or reshape them"
    )
    normed = reason(L.SpectralNormalization(L.Conv2D(6, 3, name="x")))
    assert normed.endswith(
        "SpectralNormalization in a way of its own: call it by itself"
    )


def test_the_line_says_why_nothing_is_split(strategy, capsys):
    model = model_of(L.Conv2D(1, 3, name="x"))
    with strategy.scope():
        convpar.parallelize(model)
        assert capsys.readouterr().out == (
            "network: 1 convolution on one device, CPU:0: 'x' has 1 filter for "
            "3 devices: `plan={'x': 'samples'}` splits its samples.\n"
        )
        convpar.parallelize(model, {"x": None})
    said = capsys.readouterr().out
    assert said == "network: 1 convolution on one device, CPU:0.\n"
