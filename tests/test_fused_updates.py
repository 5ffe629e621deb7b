"""SGD and Adam by one op for a weight, beside Keras' own updates."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import but_slow
from models import small_cnn

import tf_convpar as convpar
from tf_convpar.strategy import fused_updates

OPTIMIZERS = {
    "sgd": (lambda: keras.optimizers.SGD(0.1), "GradientDescent"),
    "momentum": (lambda: keras.optimizers.SGD(0.1, 0.9), "KerasMomentum"),
    "nesterov": (
        lambda: keras.optimizers.SGD(
            keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5),
            0.9,
            nesterov=True,
            clipnorm=1.0,
        ),
        "KerasMomentum",
    ),
    "adam": (lambda: keras.optimizers.Adam(0.1, use_ema=True), "Adam"),
    "adamw": (lambda: keras.optimizers.AdamW(0.1), "Adam"),
    "amsgrad": (lambda: keras.optimizers.Adam(0.1, amsgrad=True), None),
    "rmsprop": (lambda: keras.optimizers.RMSprop(0.1), None),
}


def updated(optimizer, dtype, steps=4):
    """Weights and slots after some steps, and the kinds of ops of one."""
    rng = np.random.default_rng(0)
    weights = [
        keras.Variable(rng.normal(size=s), dtype=dtype) for s in ((3, 5), (5,))
    ]
    optimizer.build(weights)
    step = tf.function(lambda *grads: optimizer.apply(grads, weights))
    for _ in range(steps):
        grads = [tf.constant(rng.normal(size=w.shape), dtype) for w in weights]
        step(*grads)
    graph = step.get_concrete_function(*grads).graph
    kinds = {op.type for op in graph.get_operations()}
    found = [np.asarray(v) for v in (*weights, *optimizer.variables)]
    return found, {k for k in kinds if k.startswith("ResourceApply")}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-5)]
)
def test_as_keras_does(name, dtype, tolerance):
    make, op = OPTIMIZERS[name]
    keras_own, kinds = updated(make(), dtype)
    assert not kinds
    ours = make()
    fused_updates._fused.add(ours)
    found, kinds = updated(ours, dtype)
    assert kinds == ({f"ResourceApply{op}"} if op else set())
    for a, b in zip(found, keras_own, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def test_sparse_gradients_are_keras_own():
    weight = keras.Variable(np.ones((4, 2)))
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build([weight])
    fused_updates._fused.add(optimizer)
    grad = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([1]), (4, 2))
    optimizer.apply([grad], [weight])
    np.testing.assert_allclose(np.asarray(weight)[:, 0], [1, 0.9, 1, 1])


@pytest.mark.parametrize("algorithm", ["auto", None])
@pytest.mark.parametrize("scaled", [False, True])
def test_whose_updates(algorithm, scaled):
    """Of models with algorithms that are chosen, and of no other."""
    inner = optimizer = keras.optimizers.SGD(0.1)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(inner)
    model = convpar.parallelize(
        small_cnn(False), algorithm=algorithm, verbose=False
    )
    model.compile(optimizer, "sparse_categorical_crossentropy")
    model.make_train_function()
    assert (inner in fused_updates._fused) == (algorithm == "auto")


BY_OP = {
    "KerasMomentum": lambda: keras.optimizers.SGD(0.1, 0.9),
    "Adam": lambda: keras.optimizers.Adam(0.01),
}


@pytest.mark.parametrize(
    ("op", "plan"),
    but_slow(
        itertools.product(BY_OP, ["filters", "samples"]),
        [(list(BY_OP)[-1], "samples")],
    ),
)
def test_each_shard_is_updated_by_one_op(op, plan, strategy):
    """Where it lies, and to what one device makes of the weight."""
    make = BY_OP[op]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 16, 16, 1)).astype("float32")
    y = rng.integers(0, 10, 6)
    found = []
    for parallel in (False, True):
        model = small_cnn(False, make())
        if parallel:
            with strategy.scope():
                model = convpar.parallelize(
                    model, {".*": plan}, algorithm="auto", verbose=False
                )
        model.fit(x, y, batch_size=6, epochs=3, shuffle=False, verbose=0)
        found.append([np.array(w) for w in model.weights])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    held = [
        shard
        for weight in model.trainable_weights
        for shard in getattr(weight.value, "shards", [weight.value])
    ]
    assert len(held) > len(model.trainable_weights)
    step = tf.function(lambda: model.train_step((x, y)), autograph=False)
    ops = step.get_concrete_function().graph.get_operations()
    places = [o.device for o in ops if o.type == f"ResourceApply{op}"]
    assert sorted(places) == sorted(shard.device for shard in held)
