"""Models of other people's packages, split: plain Keras' numbers.

`make test-packages` installs the packages, runs this as users run it, and
writes the table of docs/packages.md (`table.py`).
"""

import gc
import importlib
import time

import keras
import numpy as np
import pytest
import table
import tensorflow as tf
import zoo
from by_samples import EVERY
from by_samples import SHARES
from keras_programs._compare import arrays
from keras_programs._compare import difference
from models import StepLosses

import tf_convpar as convpar
from tf_convpar import sharding

BATCH = 4
# Plans and algorithms.
WAYS = {
    "filters": ("equal", None),
    "samples": (EVERY, None),
    "auto": ({".*": None}, "auto"),
    "samples, auto": (EVERY, "auto"),
}
# In units of what a number may be off by, 2**-23 in float32. Direct
# convolutions are off by some 8 of these, Winograd's algorithm and FFT by up to
# 40. Kernels that are off by 8 show what becomes of such an error on its way
# through a model. Other layers are off by their own: 1e-4 in all, in float32.
# Where a value is all but 0 before a ReLU, rounding turns a gradient off or on:
# models in which that happens are in float64.
ERROR = 8
FACTOR = 8
LEAST = 1000
# What is wrong is off by more, however much a model makes of errors.
MOST = 0.05


def unit():
    return np.finfo(keras.config.floatx()).eps


class Compared:
    """A model that is compiled, and all that is compared of it."""

    def __init__(self, model, x, y):
        self.model, self.x, self.y = model, x, y
        self.seconds = None
        signature = keras.tree.map_structure(
            lambda a: tf.TensorSpec([None, *a.shape[1:]], a.dtype), x
        )
        self._slopes = tf.function(self._traced, input_signature=[signature])

    def numbers(self):
        """Predictions, gradients, losses of steps, predictions after these.

        The last batch has fewer images than there are devices.
        """
        predict = self.model.predict
        found = {"predictions": predict(self.x, batch_size=BATCH, verbose=0)}
        taken = [
            [self._slopes(batch) for batch in self._batches(n)]
            for n in (BATCH, 2)
        ]
        found["outputs"] = [outputs for s in taken for outputs, _ in s]
        steps = StepLosses()
        begun = time.perf_counter()
        self.model.fit(
            self.x,
            self.y,
            batch_size=BATCH,
            epochs=2,
            shuffle=False,
            verbose=0,
            callbacks=[steps],
        )
        self.seconds = self.seconds or time.perf_counter() - begun
        found["losses"] = steps.losses
        found["trained"] = predict(self.x, batch_size=BATCH, verbose=0)
        found = {kind: arrays(values) for kind, values in found.items()}
        found["gradients"] = [[arrays(g) for _, g in s] for s in taken]
        return found

    def _batches(self, count):
        """Three batches of so many images."""
        for first in (0, 2, 4):
            at = np.arange(first, first + count) % zoo.COUNT
            yield keras.tree.map_structure(lambda a, at=at: a[at], self.x)

    def _traced(self, x):
        with tf.GradientTape() as tape:
            outputs = keras.tree.flatten(self.model(x, training=True))
            loss = tf.add_n([tf.reduce_mean(tf.sin(y)) for y in outputs])
        gradients = tape.gradient(
            loss, self.model.trainable_weights, unconnected_gradients="zero"
        )
        return outputs, [tf.convert_to_tensor(g) for g in gradients]


def alone(entry):
    """Plain Keras' numbers, and how far errors of kernels lead it away."""
    gc.collect()
    made = entry.make()
    model, x, y = made if isinstance(made, tuple) else (made, None, None)
    if x is None:
        x = zoo.images(*model.input_shape[1:])
    outputs = model(keras.tree.map_structure(lambda a: a[:1], x))
    if y is None:
        y = keras.tree.map_structure(
            lambda a: zoo.images(*a.shape[1:]), outputs
        )
        model.compile(
            # Gradients of models with many normalizations may be of any size.
            keras.optimizers.SGD(1e-3, global_clipnorm=1.0),
            keras.tree.map_structure(lambda a: "mse", outputs),
            # Tasks of keras-hub bring an accuracy of their own.
            metrics=[],
        )
    model.optimizer.build(model.trainable_variables)
    state = [*model.variables, *model.optimizer.variables]
    begin = [np.asarray(variable) for variable in state]
    compared = Compared(model, x, y)

    def again():
        for variable, value in zip(state, begin, strict=True):
            variable.assign(value)

    numbers = compared.numbers()
    again()
    rng = np.random.default_rng(4)
    for variable in model.trainable_variables:
        off = 1 + ERROR * unit() * rng.uniform(-1, 1, variable.shape)
        variable.assign(variable * tf.cast(off, variable.dtype))
    off = apart(compared.numbers(), numbers)
    again()
    return compared, numbers, off


def apart(ours, theirs):
    """Largest relative differences, by what is compared.

    Of gradients the least of three batches: what is wrong is wrong in each, and
    what rounding has turned off or on is not.
    """
    found = {
        kind: difference(ours[kind], wanted)
        for kind, wanted in theirs.items()
        if kind != "gradients"
    }
    found["gradients"] = max(
        min(map(of_gradients, *batches))
        for batches in zip(ours["gradients"], theirs["gradients"], strict=True)
    )
    return found


def of_gradients(ours, theirs):
    # The gradient of a bias before a normalization is what rounding leaves of
    # 0.
    largest = max(float(np.abs(a).max(initial=0)) for a in theirs)
    return difference(ours, theirs, 1e-3 * largest)


def unsplit_convolutions(model):
    """Why convolutions are not split; some packages make more than they use."""
    return [
        o.reason for o in sharding.unsplit_convolutions(model) if o.layer.built
    ]


@pytest.fixture(scope="module")
def plain():
    """What a model is compared with, for one model after another."""
    known = {}

    def of(entry):
        if entry not in known:
            known.clear()
            known[entry] = alone(entry)
        return known[entry]

    return of


@pytest.fixture
def entry(request):
    entry = request.param
    if entry.dtype == "float64":
        request.getfixturevalue("float64")
    try:
        importlib.import_module(entry.module)
    except ImportError as error:
        table.write(entry, "installed", {"error": str(error)})
        pytest.skip(f"{entry.package} cannot be imported: {error}")
    return entry


def those(entries):
    """Models, as parameters of a test."""
    return pytest.mark.parametrize(
        "entry",
        [pytest.param(e, id=f"{e.package}: {e.name}") for e in entries],
        indirect=True,
    )


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", WAYS)
@those(entry for entry in zoo.MODELS if not entry.fails)
def test_a_model_of_a_package(entry, way, plain):
    theirs, wanted, off = plain(entry)
    plan, algorithm = WAYS[way]
    strategy = convpar.ConvParallelStrategy(
        devices=["CPU:0", "CPU:1", "CPU:2"], shares=SHARES
    )
    try:
        with strategy.scope():
            model = convpar.parallelize(
                theirs.model, plan, algorithm=algorithm, verbose=False
            )
        compared = Compared(model, theirs.x, theirs.y)
        found = apart(compared.numbers(), wanted)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        table.write(entry, way, {"error": said[:2000]})
        raise
    table.write(
        entry,
        way,
        {
            "differences": found,
            "of errors in kernels": off,
            "seconds of the first fit": [theirs.seconds, compared.seconds],
            "convolutions": len(unsplit_convolutions(theirs.model)),
            "whole": unsplit_convolutions(model),
        },
    )
    for kind, value in found.items():
        allowed = min(FACTOR * off[kind] + LEAST * unit(), MOST)
        assert value < allowed, (kind, value, allowed)


@those(entry for entry in zoo.MODELS if entry.fails)
def test_plain_keras_fails_as_well(entry):
    table.write(entry, "plain", {"error": entry.fails})
    with pytest.raises(Exception, match="(?s)" + entry.fails):
        entry.make()
