"""Models made in a `keras.RematScope` learn the same when they are split."""

import keras
import numpy as np
import pytest
from cases import but_slow

import tf_convpar as convpar

L = keras.layers
X = np.random.default_rng(0).normal(size=(6, 16, 16, 3)).astype("float32")
Y = np.ones((6, 3), "float32")
MODES = {
    "none": {"mode": None},
    "full": {"mode": "full"},
    "activations": {"mode": "activations"},
    "larger": {"mode": "larger_than", "output_size_threshold": 1000},
    "some": {"mode": "list_of_layers", "layer_names": ["one", "three"]},
}


def network(mode):
    keras.utils.set_random_seed(1)
    # Keras itself trains no layer there that is told of training.
    with keras.RematScope(**MODES[mode]):
        layers = [
            L.Conv2D(6, 3, activation="relu", name="one"),
            L.ReLU(),
            L.MaxPooling2D(2),
            L.Conv2D(5, 3, activation="relu", name="two"),
            L.SeparableConv2D(4, 3, name="three"),
            L.Conv2D(3, 1, activation="tanh"),
            L.GlobalAveragePooling2D(),
        ]
    model = keras.Sequential([keras.Input((16, 16, 3)), *layers])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def losses(model):
    return model.fit(X, Y, epochs=3, verbose=0).history["loss"]


CASES = [
    *[(mode, plan) for mode in MODES for plan in ("auto", "equal")],
    *[
        (mode, plan)
        for mode in ("larger", "some")
        for plan in ("samples", "mixed")
    ],
]


QUICK = [("full", "auto"), ("some", "mixed")]


@pytest.mark.parametrize(("mode", "plan"), but_slow(CASES, QUICK))
def test_training_in_a_scope(mode, plan, strategy):
    plans = {
        "equal": "equal",
        "samples": {".*": "samples"},
        "mixed": {"one": "samples", "two": (1, 1, 3)},
    }
    model = network(mode)
    if plan == "auto":
        model = convpar.parallelize(model, algorithm="auto", verbose=False)
    else:
        with strategy.scope():
            model = convpar.parallelize(model, plans[plan], verbose=False)
    merged = convpar.merge(model)
    expected = losses(network(mode))
    assert expected[-1] < expected[0]
    for one in (model, merged):
        np.testing.assert_allclose(losses(one), expected, rtol=1e-5)
        scope = one.layers[0]._remat_mode
        assert (scope and scope.mode) == MODES[mode]["mode"]
