"""Models whose layers are split by samples, beside their plain Keras twins."""

import keras
import numpy as np
import tensorflow as tf

import tf_convpar as convpar
from tf_convpar import sharding
from tf_convpar.placement import SampleLayout
from tf_convpar.placement import ShardedTensor

SHARES = (2, 1, 3)
EVERY = {".*": {"split": "samples", "shards": SHARES}}


def conv(filters=4, rank=2, **kwargs):
    return getattr(keras.layers, f"Conv{rank}D")(
        filters, 3, padding="same", use_bias=False, **kwargs
    )


def centre(shape, dtype=None):
    """The kernel of a convolution that changes nothing."""
    kernel = np.zeros(shape)
    kernel[1, 1] = np.eye(3)
    return tf.constant(kernel, dtype)


def between(function, shape, batch=None):
    """A convolution, something, and if it fits another convolution."""
    x = keras.Input(shape, batch_size=batch)
    y = conv(rank=len(shape) - 1, name="first")(x)
    y = function(y)
    if not isinstance(y, list | tuple) and len(y.shape) == len(shape) + 1:
        y = conv(2, rank=len(shape) - 1, name="second")(y)
    return keras.Model(x, y)


def numbers(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def shaken(model, seed=1):
    """With weights that are neither 0 nor 1."""
    rng = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        variable.assign(rng.uniform(-1, 1, variable.shape))
    return model


def split(model, strategy, plan=EVERY, **kwargs):
    with strategy.scope():
        return convpar.parallelize(model, plan, **kwargs)


def slopes(model, *inputs, training=True):
    """Outputs, and gradients for inputs and every weight."""
    inputs = [tf.constant(x) for x in inputs]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = keras.tree.flatten(
            model(inputs if len(inputs) > 1 else inputs[0], training=training)
        )
        loss = tf.add_n([tf.reduce_sum(tf.sin(y)) for y in outputs])
        loss += sum(tf.cast(extra, loss.dtype) for extra in model.losses)
    found = tape.gradient(loss, [*inputs, *model.trainable_variables])
    return [np.asarray(y) for y in outputs] + [
        np.float64(0) if g is None else np.asarray(tf.convert_to_tensor(g))
        for g in found
    ]


def curvature(model, x, traced=None):
    """The gradient, by the input and every weight, of what a gradient is.

    The model may be a function that was traced without a tape, or its
    `"slope"` one.
    """
    weights = model.trainable_variables

    def function(run, which):
        if traced != which:
            return run
        function = tf.function(run, autograph=False)
        function.get_concrete_function(tf.TensorSpec(x.shape, x.dtype))
        return function

    run = function(lambda x: model(x, training=True), "model")

    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.sin(run(x)))
        return tape.gradient(loss, x)

    slope = function(slope, "slope")
    with tf.GradientTape() as outer:
        outer.watch(x)
        norm = tf.reduce_sum(tf.square(slope(x)))
    found = outer.gradient(norm, [x, *weights], unconnected_gradients="zero")
    return [np.asarray(tf.convert_to_tensor(g)) for g in found]


def same(ours, theirs, tolerance=1e-10):
    for a, b in zip(ours, theirs, strict=True):
        scale = max(1.0, float(np.abs(b).max(initial=0)))
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale)


def layouts(model, *inputs):
    """How what each operation of a graph gives lies; None on the chief."""
    found = {}

    def watched(operation):
        def call(*args, **kwargs):
            result = operation(*args, **kwargs)
            first = keras.tree.flatten(result)[0]
            sharded = isinstance(first, ShardedTensor)
            found[operation.name] = first.layout if sharded else None
            return result

        return call

    graph = sharding.graph_of(model)
    graph._run_through_graph([tf.constant(x) for x in inputs], watched)
    return found


def in_between(model, parallel, *inputs):
    """The kinds of layouts of all that is no convolution and no input."""
    names = [
        layer.name
        for layer in model.operations
        if not isinstance(layer, keras.layers.InputLayer)
        and layer.name not in ("first", "second")
    ]
    found = layouts(parallel, *inputs)
    return {name: type(found[name]) for name in names}


ON_SAMPLES = SampleLayout
