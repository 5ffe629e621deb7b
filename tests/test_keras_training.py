"""Under this strategy Keras trains as under none: nothing is taken or asked."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import by_turns
from cases import slow
from models import largest_difference

import tf_convpar as convpar
from tf_convpar.placement import ShardedVariable

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 8, 8, 1)).astype("float32")
Y = RNG.integers(0, 4, 90)
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def network(parallel):
    keras.utils.set_random_seed(1)
    conv = keras.layers.Conv2D
    own = {}
    if parallel:
        conv, own = convpar.ConvParallel2D, {"shards": (3, 1, 2)}
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            conv(6, 3, activation="tanh", **own),
            keras.layers.Dropout(0.2),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(4),
        ]
    )


def shuffled():
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(64, seed=3)
    return data.batch(16).prefetch(2)


def generated():
    for i in range(0, 90, 16):
        yield X[i : i + 16], Y[i : i + 16]


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 6

    def __getitem__(self, i):
        return X[16 * i : 16 * i + 16], Y[16 * i : 16 * i + 16]


@pytest.mark.parametrize("data", [shuffled, slow(generated), slow(Batches)])
def test_nothing_is_taken_out_of_a_dataset(data, strategy):
    histories = []
    for scope in (contextlib.nullcontext(), strategy.scope()):
        with scope:
            model = network(parallel=bool(histories))
            model.compile("adam", LOSS)
        seen = []
        count = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs, seen=seen: seen.append(batch)
        )
        model.fit(data(), epochs=2, verbose=0, callbacks=[count])
        losses = model.history.history["loss"]
        histories.append(
            [*losses, model.evaluate(data(), verbose=0), len(seen)]
        )
        assert len(seen) >= 6
    assert largest_difference(*map(np.array, histories)) < 1e-5


class OnlyStep(keras.Model):
    """Trains what it holds, and has no `call`."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = LOSS(y, self.inner(x, training=True))
        weights = self.inner.trainable_weights
        grads = tape.gradient(loss, weights)
        self.optimizer.apply_gradients(zip(grads, weights, strict=True))
        return {"own": loss}


def test_a_model_without_call(strategy):
    losses = []
    for scope in (contextlib.nullcontext(), strategy.scope()):
        with scope:
            model = OnlyStep(network(parallel=bool(losses)))
            model.compile("adam")
        history = model.fit(X, Y, epochs=3, verbose=0, shuffle=False).history
        losses.append(np.array(history["own"]))
    assert largest_difference(*losses) < 1e-5
    assert losses[0][-1] < losses[0][0]


class Late(keras.Model):
    """Not built before its first batch."""

    def __init__(self, parallel):
        super().__init__()
        conv = convpar.ConvParallel2D if parallel else keras.layers.Conv2D
        self.conv = conv(6, 3)
        self.last = keras.layers.Dense(4)

    def call(self, x):
        return self.last(tf.reduce_mean(self.conv(x), [1, 2]))


def test_a_model_that_is_built_by_its_first_batch(strategy):
    losses = []
    for scope in (contextlib.nullcontext(), strategy.scope()):
        keras.utils.set_random_seed(1)
        with scope:
            model = Late(parallel=bool(losses))
            model.compile("adam", LOSS, metrics=["accuracy"])
        history = model.fit(X, Y, epochs=3, verbose=0, shuffle=False).history
        losses.append(np.array(history["loss"]))
    assert largest_difference(*losses) < 1e-5
    assert isinstance(model.conv.kernel._value, ShardedVariable)
    slots = [v for v in model.optimizer.variables if "conv" in v.path]
    assert slots
    for slot in slots:
        assert isinstance(slot._value, ShardedVariable)


OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "decay and averages": lambda: keras.optimizers.AdamW(
        0.01, use_ema=True, ema_overwrite_frequency=2
    ),
    "accumulation": lambda: keras.optimizers.SGD(
        0.01, gradient_accumulation_steps=2
    ),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01)
    ),
}


def loop(model, optimizer, graph):
    """Losses of a program's own steps, with clipping and accumulation."""

    def step(x, y):
        total = [tf.zeros_like(v) for v in model.trainable_variables]
        for half in (slice(0, 8), slice(8, 16)):
            with tf.GradientTape() as tape:
                loss = LOSS(y[half], model(x[half], training=True))
                scaled = optimizer.scale_loss(loss)
            grads = tape.gradient(scaled, model.trainable_variables)
            total = [a + b / 2 for a, b in zip(total, grads, strict=True)]
        total, _ = tf.clip_by_global_norm(total, 1e6)
        optimizer.apply_gradients(
            zip(total, model.trainable_variables, strict=True)
        )
        return loss

    step = tf.function(step) if graph else step
    x, y = tf.constant(X), tf.constant(Y)
    return np.array(
        [step(x[i : i + 16], y[i : i + 16]).numpy() for i in range(0, 74, 16)]
    )


INSIDE = ("all", "optimizer", "loop", "model")


@pytest.mark.parametrize(
    ("name", "inside", "graph"),
    by_turns([*OPTIMIZERS], INSIDE, (True, False)),
)
def test_a_loop_of_ones_own(name, inside, graph, strategy):
    """Whatever of it is in the strategy's scope, beside the model."""
    make = OPTIMIZERS[name]
    expected = loop(network(False), make(), graph)

    def scope(part):
        yes = inside in ("all", part)
        return strategy.scope() if yes else contextlib.nullcontext()

    with strategy.scope():
        model = network(True)
    with scope("optimizer"):
        optimizer = make()
    with scope("loop"):
        losses = loop(model, optimizer, graph)
    assert largest_difference(losses, expected) < 1e-5
    kernel = model.layers[0].kernel
    slots = [v for v in optimizer.variables if v.shape == kernel.shape]
    assert slots
    for slot in slots:
        assert slot._value.layout == kernel._value.layout


def test_a_session_is_cleared_in_the_scope(strategy):
    with strategy.scope():
        for clear in (keras.utils.clear_session, keras.backend.clear_session):
            clear()
            assert tf.distribute.get_strategy() is strategy
            model = network(True)
            assert model.layers[0].is_sharded
            assert tf.Variable(1.0).device == strategy.chief_device
        model.compile("adam", LOSS)
        model.fit(X, Y, verbose=0)
    assert not tf.distribute.has_strategy()
    keras.utils.clear_session()
    assert not tf.distribute.has_strategy()


def test_other_strategies_are_left_alone():
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        model = network(False)
        model.compile("adam", LOSS)
    model.fit(X, Y, verbose=0)
    # Keras builds there by a batch of the data, and so before it traces.
    assert model.optimizer.built and model._compile_loss.built


class Counting(keras.layers.Layer):
    """Counts how often it is called: in a traced step, how often that was."""

    calls = 0

    def call(self, x):
        type(self).calls += 1
        return x


@pytest.mark.parametrize("optimizer", ["adam", "loss scale"])
def test_a_step_is_traced_once(optimizer, strategy):
    # TensorFlow traces one that makes slots twice.
    if optimizer == "loss scale":
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.Adam(), initial_scale=2.0
        )
    with strategy.scope():
        model = network(parallel=True)
        model.add(Counting())
        model.compile(optimizer, LOSS)
    before = Counting.calls
    model.fit(X, Y, batch_size=30, epochs=2, verbose=0)
    assert Counting.calls - before == 1
    kernel = model.layers[0].kernel
    slots = [
        v
        for v in model.optimizer.variables
        if isinstance(v._value, ShardedVariable) and v.shape == kernel.shape
    ]
    assert len(slots) == 2
    assert all(v._value.layout == kernel.layout for v in slots)


def test_a_step_is_traced_once_without_a_strategy_too():
    model = network(parallel=True)
    model.add(Counting())
    model.compile("adam", LOSS)
    before = Counting.calls
    model.fit(X, Y, batch_size=30, epochs=2, verbose=0)
    assert Counting.calls - before == 1


def test_the_learning_rate_is_read_once(strategy):
    """By the whole step, not by each shard of each variable."""
    with strategy.scope():
        model = network(parallel=True)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), LOSS)
    rate = model.optimizer._learning_rate.value
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)

    @tf.function
    def step(grads):
        model.optimizer.apply(grads, model.trainable_variables)

    specs = [tf.TensorSpec(v.shape) for v in model.trainable_variables]
    graph = step.get_concrete_function(specs).graph
    inside = next(
        inner for outer, inner in graph.captures if outer is rate.handle
    )
    reads = [op for op in inside.consumers() if op.type == "ReadVariableOp"]
    assert len(reads) == 1
    before = [v.numpy() for v in model.trainable_variables]
    model.optimizer.learning_rate = 0.5
    step([tf.ones(v.shape) for v in model.trainable_variables])
    for variable, value in zip(model.trainable_variables, before, strict=True):
        np.testing.assert_allclose(variable.numpy(), value - 0.5, rtol=1e-6)
