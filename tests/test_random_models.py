"""Whatever a model is made of and however it is split: plain Keras' numbers."""

import hypothesis
import numpy as np
import pytest
import random_models
import tensorflow as tf
from cases import slow

import tf_convpar as convpar

# Keras makes seeds of initializers; all weights are assigned later.
pytestmark = pytest.mark.filterwarnings(
    "ignore::hypothesis.errors.HypothesisDeprecationWarning"
)


def results(model, batches, size, trace):
    """Outputs, losses and gradients of some batches, and the last batch."""
    weights = model.trainable_weights

    def slopes(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model(x, training=True)
            loss = tf.reduce_mean(tf.sin(y))
        grads = tape.gradient(loss, [x, *weights], unconnected_gradients="zero")
        return [y, *map(tf.convert_to_tensor, grads)]

    if trace:
        signature = [tf.TensorSpec([None, *size])]
        slopes = tf.function(slopes, signature, autograph=False)
    rng = np.random.default_rng(0)
    found = []
    for count in batches:
        x = rng.uniform(-1, 1, (count, *size)).astype("float32")
        found += [np.asarray(y) for y in slopes(tf.constant(x))]
    return [*found, x]


def check(drawn, strategy):
    model, plan, batches, algorithm = drawn
    rng = np.random.default_rng(1)
    for variable in model.trainable_variables:
        variable.assign(rng.uniform(-0.5, 0.5, variable.shape))
    with strategy.scope():
        parallel = convpar.parallelize(
            model, plan, algorithm=algorithm, verbose=False
        )
    size = model.input_shape[1:]
    *expected, x = results(model, batches, size, trace=False)
    expected.append(np.asarray(model(x, training=False)))
    *found, x = results(parallel, batches, size, trace=True)
    found.append(parallel.predict_on_batch(x))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        # Float32 has 24 bits, and a batch normalization of few numbers whose
        # variance is small (its epsilon is 1e-3) makes an error 30 times as
        # large; two may follow one another.
        scale = max(1e-2, float(np.abs(theirs).max(initial=0)))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3 * scale)


def examples(count, seed, strategy):
    """Checks so many models, the same ones each time."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(random_models.models())
    def run(drawn):
        check(drawn, strategy)

    run()


# In parts, which run beside one another.
@pytest.mark.parametrize("part", [0, slow(1)])
def test_random_models(part, strategy):
    examples(25, part, strategy)


@pytest.mark.slow
@pytest.mark.timeout(36000)
@pytest.mark.parametrize("part", range(2, 12))
def test_many_random_models(part, strategy):
    examples(480, part, strategy)
