"""Layers of the user's own: those that treat each sample alone are split."""

import by_samples
import keras
import numpy as np
import pytest
import tensorflow as tf
from by_samples import between
from by_samples import numbers
from by_samples import same
from by_samples import shaken
from by_samples import slopes
from by_samples import split
from keras import ops
from keras.src.applications.convnext import LayerScale
from keras.src.applications.inception_resnet_v2 import CustomScaleLayer

from tf_convpar import sharding
from tf_convpar.placement import SampleLayout
from tf_convpar.sharding.rules import sample_rule_for

L = keras.layers
IMAGE = (6, 6, 4)
OUTSIDE = tf.Variable(2.0, dtype="float64")

pytestmark = pytest.mark.usefixtures("float64")


class Mine(L.Layer):
    """A function as a layer."""

    def __init__(self, function):
        super().__init__(name="mine")
        self.function = function

    def call(self, x):
        return self.function(x)


class Excitation(L.Layer):
    """Squeeze and excitation, with layers and a weight of its own."""

    def build(self, shape):
        self.squeeze = L.Dense(2, activation="relu")
        self.excite = L.Dense(shape[-1], activation="sigmoid")
        self.factor = self.add_weight(shape=(shape[-1],), name="factor")

    def call(self, x, training=None):
        means = ops.mean(x, axis=(1, 2))
        parts = self.excite(self.squeeze(means))[:, None, None, :]
        return x * parts * (self.factor if training else self.factor)


class Mlp(L.Layer):
    """Products of pixels, which TensorFlow computes as rows of a matrix."""

    def __init__(self):
        super().__init__(name="mine")
        self.norm, self.wide, self.narrow = (
            L.LayerNormalization(),
            L.Dense(8, activation="gelu"),
            L.Dense(4),
        )

    def call(self, x):
        return x + self.narrow(self.wide(self.norm(x)))


class Attention(L.Layer):
    def __init__(self):
        super().__init__(name="mine")
        self.query, self.key = L.Dense(4), L.Dense(4)

    def call(self, x):
        pixels = ops.reshape(x, (-1, 36, 4))
        scores = ops.matmul(
            self.query(pixels), ops.transpose(self.key(pixels), (0, 2, 1))
        )
        y = ops.matmul(ops.softmax(scores), pixels)
        return ops.reshape(y, (-1, 6, 6, 4))


class InTraining(L.Layer):
    """Mixes samples in training alone."""

    def __init__(self):
        super().__init__(name="mine")

    def call(self, x, training=None):
        return x - ops.mean(x, axis=0) if training else x


class Counting(L.Layer):
    """Keeps a state of its own."""

    def build(self, shape):
        self.mean = self.add_weight(
            shape=(shape[-1],), trainable=False, name="mean"
        )

    def call(self, x):
        self.mean.assign(ops.mean(x, axis=(0, 1, 2)))
        return x - self.mean


class Clipped(L.Layer):
    """Changes a weight in its call."""

    def build(self, shape):
        self.factor = self.add_weight(shape=(shape[-1],), name="factor")

    def call(self, x):
        self.factor.assign(ops.clip(self.factor, -0.5, 0.5))
        return x * self.factor


class Penalized(L.Layer):
    """Adds a loss, once and not for each device."""

    def build(self, shape):
        self.factor = self.add_weight(shape=(shape[-1],), name="factor")

    def call(self, x):
        self.add_loss(ops.sum(ops.square(self.factor)))
        return x * self.factor


def patches(x):
    batch = tf.shape(x)[0]
    parts = tf.transpose(
        tf.reshape(x, [batch, 3, 2, 3, 2, 4]), [0, 1, 3, 2, 4, 5]
    )
    return tf.reshape(parts, [batch, 3, 3, 16])


def gated(x):
    one, other = ops.split(x, 2, axis=-1)
    return one * ops.sigmoid(other)


def of_rows(x):
    """As TensorFlow's tensordot does, in other words."""
    rows = tf.reshape(x, [-1, 4]) @ tf.ones((4, 3), x.dtype)
    return tf.reshape(rows, tf.concat([tf.shape(x)[:-1], [3]], 0))


@tf.custom_gradient
def clipped(x):
    """Its gradient is of all samples."""
    return tf.identity(x), lambda dy: dy / (1 + tf.norm(dy))


@tf.RegisterGradient("ClippedOfAll")
def _clipped_of_all(op, dy):
    return dy / (1 + tf.norm(dy))


def overridden(x):
    graph = tf.compat.v1.get_default_graph()
    with graph.gradient_override_map({"Identity": "ClippedOfAll"}):
        return tf.identity(x)


@tf.custom_gradient
def scaled(x):
    return 2 * x, lambda dy: dy / (1 + tf.abs(x))


def several_rows(x):
    rows = tf.reshape(x, [-1, 24])
    rows -= tf.reduce_mean(rows, 1, keepdims=True)
    return tf.reshape(rows, tf.shape(x))


ALONE = {
    "numbers": lambda: Mine(lambda x: 3 * x + 1),
    "mish": lambda: Mine(lambda x: x * ops.tanh(ops.softplus(x))),
    "norm of pixels": lambda: Mine(
        lambda x: x / ops.sqrt(1 + ops.mean(x * x, (1, 2), keepdims=True))
    ),
    "channels reversed": lambda: L.Lambda(lambda x: x[..., ::-1]),
    "activation": lambda: L.Activation(lambda x: ops.tanh(x) - 1),
    "custom gradient": lambda: Mine(ops.silu),
    "custom gradient of its own": lambda: Mine(scaled),
    "halves": lambda: Mine(gated),
    "patches": lambda: Mine(patches),
    "rows": lambda: Mine(of_rows),
    "einsum": lambda: Mine(lambda x: tf.einsum("bhwc,bhwd->bcd", x, x)),
    "several rows of a sample": lambda: Mine(several_rows),
    "concatenated": lambda: Mine(
        lambda x: tf.concat(
            [x, tf.pad(x[:, 1:], [[0, 0], [1, 0], [0, 0], [0, 0]])], 3
        )
    ),
    "depth to space": lambda: Mine(lambda x: tf.nn.depth_to_space(x, 2)),
    "of keras.applications": lambda: LayerScale(0.1, 4),
    "of two inputs": lambda: lambda y: CustomScaleLayer(0.2)([y, L.ReLU()(y)]),
    "layers and a weight": Excitation,
    "layers of rows": Mlp,
    "attention": Attention,
}
MIXED = {
    "mean of samples": lambda: Mine(lambda x: x - ops.mean(x, axis=0)),
    "maximum of all": lambda: Mine(lambda x: x / ops.max(x)),
    "number of samples": lambda: Mine(
        lambda x: x * tf.cast(tf.shape(x)[0], x.dtype)
    ),
    "number, shaped": lambda: Mine(
        lambda x: x + tf.cast(tf.reshape(tf.shape(x)[0], [1]), x.dtype)
    ),
    "reversed": lambda: Mine(lambda x: x[::-1]),
    "rolled": lambda: Mine(lambda x: tf.roll(x, 1, 0)),
    "mixed up": lambda: Mine(lambda x: x + tf.reverse(x, [0])),
    "gathered": lambda: Mine(lambda x: x + tf.gather(x, [0])),
    "first": lambda: Mine(lambda x: x - x[:1]),
    "transposed": lambda: Mine(
        lambda x: tf.transpose(tf.nn.softmax(tf.transpose(x)))
    ),
    "softmax of rows": lambda: Mine(
        lambda x: tf.reshape(
            tf.nn.softmax(tf.reshape(x, (-1, 4)), axis=0), (-1, *IMAGE)
        )
    ),
    "products of samples": lambda: Mine(
        lambda x: tf.reshape(
            tf.matmul(tf.reshape(x, (-1, 144)), tf.reshape(x, (-1, 144)), True)
            @ tf.ones((144, 144), x.dtype),
            (-1, *IMAGE),
        )[:6]
    ),
    "einsum": lambda: Mine(lambda x: tf.einsum("bhwc,dhwc->bhwc", x, x)),
    "variable of nobody": lambda: Mine(lambda x: x * OUTSIDE),
    "noise for all": lambda: Mine(
        lambda x: x + 0 * tf.random.normal((1, *IMAGE), dtype=x.dtype)
    ),
    "noise": lambda: Mine(
        lambda x: x + 0 * tf.random.normal(tf.shape(x), dtype=x.dtype)
    ),
    "gradient of all": lambda: Mine(clipped),
    "gradient that replaces another": lambda: Mine(overridden),
    "in training": InTraining,
    "a state": Counting,
    "a weight that changes": Clipped,
    "a number for each sample": lambda: Mine(
        lambda x: x * np.arange(6.0).reshape(6, 1, 1, 1)
    ),
    "samples along another axis": lambda: Mine(
        lambda x: tf.reshape(
            tf.reshape(x, [36, -1, 4]) * np.arange(36.0).reshape(36, 1, 1),
            [-1, *IMAGE],
        )
    ),
}


def rule_of(layer):
    x = keras.Input(IMAGE)
    model = keras.Model(x, layer(x))
    node = [n for n in sharding.nodes(model) if not n.is_input][-1]
    tensors = (*node.input_tensors, *node.outputs)
    return sample_rule_for(node, [tensor.shape for tensor in tensors])


@pytest.mark.parametrize("case", ALONE)
def test_what_treats_each_sample_alone_runs_where_samples_are(case, strategy):
    model = shaken(between(ALONE[case](), (6, 6, 3)))
    plan = {".*": {"split": "samples", "shards": (5, 1, 3)}}
    parallel = split(model, strategy, plan)
    # Two samples, none and one.
    x = numbers((3, 6, 6, 3))
    same(slopes(parallel, x), slopes(model, x), 1e-11)
    kinds = by_samples.in_between(model, parallel, x)
    assert set(kinds.values()) == {SampleLayout}, kinds


@pytest.mark.parametrize("case", MIXED)
def test_what_mixes_samples_is_joined(case, strategy):
    assert rule_of(MIXED[case]()) is None
    model = shaken(between(MIXED[case](), (6, 6, 3)))
    parallel = split(model, strategy)
    x = numbers((6, 6, 6, 3))
    same(slopes(parallel, x), slopes(model, x), 1e-11)


@pytest.mark.parametrize(
    "layer", [L.Conv2D(4, 3), L.TimeDistributed(L.Conv1D(4, 3))]
)
def test_convolutions_are_split_by_their_own_plan(layer):
    assert rule_of(layer) is None


class OfMask(L.Layer):
    supports_masking = True

    def __init__(self, axis):
        super().__init__(name="mine")
        self.axis = axis

    def call(self, x, mask=None):
        counts = ops.sum(ops.cast(mask, x.dtype), self.axis, keepdims=True)
        return x / (1 + counts[..., None])


@pytest.mark.parametrize(("axis", "layout"), [(1, SampleLayout), (0, None)])
def test_a_mask_is_an_input_as_others_are(axis, layout, strategy):
    def function(y):
        return OfMask(axis)(L.Masking()(L.ReLU()(L.Reshape((36, 4))(y))))

    model = shaken(between(function, (6, 6, 3)))
    parallel = split(model, strategy)
    x = numbers((6, 6, 6, 3))
    same(slopes(parallel, x), slopes(model, x), 1e-11)
    lies = by_samples.layouts(parallel, x)["mine"]
    assert lies is layout or isinstance(lies, layout)


def test_losses_are_of_all_samples(strategy):
    assert rule_of(Penalized()) is None
    model = shaken(between(Penalized(), (6, 6, 3)))
    parallel = split(model, strategy)
    x = numbers((6, 6, 6, 3))
    same(slopes(parallel, x), slopes(model, x), 1e-11)
    assert float(parallel.losses[0]) == pytest.approx(float(model.losses[0]))


@pytest.mark.parametrize("function", [of_rows, ops.silu])
def test_images_of_unknown_size(function, strategy):
    model = shaken(between(Mine(function), (None, None, 3)))
    parallel = split(model, strategy)
    x = numbers((5, 6, 4, 3))
    same(slopes(parallel, x), slopes(model, x), 1e-11)


def test_a_layer_is_traced_once(strategy):
    traces = []

    def function(x):
        traces.append(x)
        return x * 2

    x = keras.Input((6, 6, 3))
    model = keras.Model(x, by_samples.conv(name="first")(Mine(function)(x)))
    before = len(traces)
    split(model, strategy)
    # For the rule, and where the copy of the model calls it.
    assert len(traces) - before <= 3


def test_training_with_a_last_batch_of_one(strategy):
    model = shaken(between(Excitation(), (6, 6, 3)))
    parallel = split(model, strategy)
    x, y = numbers((9, 6, 6, 3)), numbers((9, 6, 6, 2), 1)
    losses = []
    for one in (model, parallel):
        with strategy.scope() if one is parallel else tf.device("CPU:0"):
            one.compile("sgd", "mse", jit_compile=False)
        history = one.fit(
            x, y, batch_size=4, epochs=2, shuffle=False, verbose=0
        )
        losses.append(history.history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-11)
