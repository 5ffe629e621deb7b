"""Layers between convolutions that are split by samples."""

import functools

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
from cases import slow
from keras import ops
from keras.src.ops import numpy
from keras.src.ops.nn import Softmax

from tf_convpar.placement import SampleLayout

L = keras.layers
ROW, IMAGE, VOLUME = (6, 3), (6, 6, 3), (4, 4, 4, 2)


pytestmark = pytest.mark.usefixtures("float64")


class OfEachSample(L.Layer):
    """A user's layer."""

    works_per_sample = True

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = L.Dense(4)

    def call(self, x, training=None):
        y = self.inner(x)
        return y / ops.max(ops.abs(y), axis=(1, 2), keepdims=True)


class Drawing(L.Layer):
    """A user's layer that keeps a seed."""

    works_per_sample = True

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = L.Dropout(0.4, seed=3)

    def call(self, x, training=None):
        return self.inner(x, training=training)


class Penalized(L.Layer):
    """A user's layer that adds a loss."""

    works_per_sample = True

    def call(self, x):
        self.add_loss(ops.mean(x * x))
        return x


def in_turn(*layers):
    return lambda y: functools.reduce(lambda y, layer: layer(y), layers, y)


def with_tanh(join):
    return lambda y: join([y, L.Activation("tanh")(y)])


def rows(y):
    return L.Reshape((9, 16))(y)


IMAGES = {
    "max pooling": L.MaxPooling2D,
    "average pooling": lambda: L.AveragePooling2D(3, 2, padding="same"),
    "global average": L.GlobalAveragePooling2D,
    "global max": lambda: L.GlobalMaxPooling2D(keepdims=True),
    "zero padding": lambda: L.ZeroPadding2D(((1, 2), (0, 3))),
    "cropping": lambda: L.Cropping2D(1),
    "centre crop": lambda: L.CenterCrop(4, 3),
    "upsampling": L.UpSampling2D,
    "bilinear": lambda: L.UpSampling2D(2, interpolation="bilinear"),
    "resizing": lambda: L.Resizing(4, 9),
    "relu": lambda: L.ReLU(max_value=1.0, negative_slope=0.1),
    "leaky relu": L.LeakyReLU,
    "elu": L.ELU,
    "prelu": lambda: L.PReLU(shared_axes=[1]),
    "gelu": lambda: L.Activation("gelu"),
    "activation softmax": lambda: L.Activation("softmax"),
    "softmax": L.Softmax,
    "softmax of pixels": lambda: L.Softmax(axis=(1, 2)),
    "identity": L.Identity,
    "rescaling of each channel": lambda: L.Rescaling(np.arange(4.0), 0.5),
    "layer normalization": L.LayerNormalization,
    "of channels and pixels": lambda: L.LayerNormalization(axis=[1, 2, 3]),
    "group normalization": lambda: L.GroupNormalization(2),
    "rms normalization": L.RMSNormalization,
    "unit normalization": lambda: L.UnitNormalization(axis=(1, 3)),
    "normalization": lambda: L.Normalization(
        mean=np.arange(4.0), variance=np.arange(1.0, 5.0)
    ),
    "flatten": L.Flatten,
    "reshape": lambda: L.Reshape((-1, 8)),
    "permute": lambda: L.Permute((3, 1, 2)),
    "dense": lambda: L.Dense(5, activation="softmax"),
    "einsum": lambda: L.EinsumDense("abcd,de->abce", (6, 6, 3), bias_axes="e"),
    "convolutional lstm": lambda: (
        lambda y: L.ConvLSTM1D(2, 3)(L.Reshape((6, 6, 4))(y))
    ),
    "a user's": OfEachSample,
    "add": lambda: with_tanh(L.Add()),
    "subtract": lambda: with_tanh(L.Subtract()),
    "multiply": lambda: with_tanh(L.Multiply()),
    "average": lambda: with_tanh(L.Average()),
    "maximum": lambda: with_tanh(L.Maximum()),
    "minimum": lambda: with_tanh(L.Minimum()),
    "concatenate": lambda: with_tanh(L.Concatenate()),
    "concatenate rows": lambda: with_tanh(L.Concatenate(axis=1)),
    "squeeze and excitation": lambda: (
        lambda y: L.Multiply()(
            [y, L.Dense(4)(L.GlobalAveragePooling2D(keepdims=True)(y))]
        )
    ),
    "attention": lambda: lambda y: L.Attention(use_scale=True)([rows(y)] * 2),
    "additive attention": lambda: (
        lambda y: L.AdditiveAttention()(
            [rows(y), L.Dense(16)(rows(y)), rows(y)]
        )
    ),
    "self-attention": lambda: (
        lambda y: L.MultiHeadAttention(2, 3)(
            rows(y), rows(y), use_causal_mask=True
        )
    ),
    "attention and scores": lambda: (
        lambda y: L.MultiHeadAttention(2, 3)(
            rows(y), rows(y), return_attention_scores=True
        )
    ),
    "grouped queries": lambda: (
        lambda y: L.GroupQueryAttention(3, 4, 2)(rows(y), rows(y))
    ),
    "embedding": lambda: (
        lambda y: L.Embedding(7, 3)(ops.clip(ops.absolute(y), 0, 6))
    ),
    "numbers": lambda: lambda y: 2 - ops.relu(y / 3 + 0.1),
    "ops.add": lambda: lambda y: ops.tanh(y) + y * y,
    "ops.softmax": lambda: lambda y: ops.softmax(y, axis=1),
    "ops.log_softmax": lambda: ops.log_softmax,
    "ops.mean": lambda: lambda y: ops.mean(y, axis=1),
    "ops.sum": lambda: lambda y: ops.sum(y, axis=[1, 2], keepdims=True),
    "ops.max": lambda: lambda y: ops.max(y, axis=(-1, 2)),
    "ops.min": lambda: lambda y: ops.min(y, axis=-1),
    "ops.concatenate": lambda: lambda y: ops.concatenate([y, y * y], axis=2),
    "ops.expand_dims": lambda: lambda y: ops.expand_dims(y, 1),
}
ROWS = {
    "pooling": lambda: in_turn(
        L.MaxPooling1D(), L.UpSampling1D(), L.AveragePooling1D(2)
    ),
    "padding": lambda: in_turn(L.ZeroPadding1D(2), L.Cropping1D(1)),
    "global average": lambda: in_turn(
        L.GlobalAveragePooling1D(), L.RepeatVector(3)
    ),
    "global max": L.GlobalMaxPooling1D,
    "simple rnn": lambda: L.SimpleRNN(3, return_sequences=True),
    "gru": lambda: L.GRU(3),
    "lstm": lambda: L.LSTM(3, return_state=True, go_backwards=True),
    "both directions": lambda: L.Bidirectional(
        L.LSTM(3, return_sequences=True)
    ),
    "masked lstm": lambda: in_turn(L.ReLU(), L.Masking(), L.LSTM(3)),
    "dot": lambda: with_tanh(L.Dot(axes=(1, 1))),
    "dot of rows": lambda: with_tanh(L.Dot(axes=-1, normalize=True)),
}
VOLUMES = {
    "pooling": lambda: in_turn(
        L.MaxPooling3D(), L.UpSampling3D(), L.AveragePooling3D(2)
    ),
    "padding": lambda: in_turn(L.ZeroPadding3D(2), L.Cropping3D(1)),
    "global average": L.GlobalAveragePooling3D,
    "global max": L.GlobalMaxPooling3D,
}
CASES = [
    pytest.param(shape, make, id=f"{case} {len(shape) - 1}D")
    for shape, cases in ((ROW, ROWS), (IMAGE, IMAGES), (VOLUME, VOLUMES))
    for case, make in cases.items()
]


# These have no rule, or none that holds here: the chief runs them.
JOINED = {
    "dense": lambda: in_turn(L.Flatten(), L.Dense(64, name="joined")),
    "a user's, with a seed": lambda: Drawing(name="joined"),
    "dropout alike": lambda: L.Dropout(
        0.4, noise_shape=(1, 6, 6, 4), seed=3, name="joined"
    ),
    "rows of samples": lambda: L.LayerNormalization(axis=0, name="joined"),
    "groups of samples": lambda: L.GroupNormalization(2, axis=0, name="joined"),
    "unit normalization": lambda: L.UnitNormalization(axis=0, name="joined"),
    "softmax": lambda: L.Softmax(axis=(0, 1), name="joined"),
    "concatenate": lambda: with_tanh(L.Concatenate(axis=0, name="joined")),
    "einsum": lambda: L.EinsumDense("abcd,de->bace", (6, 6, 3), name="joined"),
    "stateful": lambda: in_turn(
        L.Reshape((9, 16)), L.GRU(2, stateful=True, name="joined")
    ),
    "recurrent dropout": lambda: in_turn(
        L.Reshape((9, 16)),
        L.LSTM(2, dropout=0.3, recurrent_dropout=0.2, seed=3, name="joined"),
    ),
    # Its mask is that of shards.
    "masked, with dropout": lambda: in_turn(
        L.Reshape((36, 4)),
        L.ReLU(),
        L.Masking(),
        L.GRU(2, dropout=0.3, seed=3, name="joined"),
    ),
    "attention with dropout": lambda: (
        lambda y: L.MultiHeadAttention(
            2, 3, dropout=0.3, seed=3, name="joined"
        )(rows(y), rows(y))
    ),
    "attention with a loss within": lambda: (
        lambda y: L.MultiHeadAttention(
            2, 3, activity_regularizer="l2", name="joined"
        )(rows(y), rows(y))
    ),
    "attention with a mask for all": lambda: (
        lambda y: L.MultiHeadAttention(2, 3, name="joined")(
            rows(y), rows(y), attention_mask=np.tri(9)[None]
        )
    ),
    "ops.softmax": lambda: lambda y: Softmax(axis=0, name="joined")(y),
    "ops.mean": lambda: lambda y: numpy.Mean((0, 2), name="joined")(y),
    "ops.max": lambda: lambda y: numpy.Max(name="joined")(y),
    "operation with an array": lambda: (
        lambda y: numpy.Add(name="joined")(y, np.ones((1, 6, 6, 4)))
    ),
    # Of fewer axes, samples of one would meet rows of the other.
    "broadcast": lambda: (
        lambda y: numpy.Multiply(name="joined")(
            y, L.GlobalAveragePooling2D()(y)
        )
    ),
}


@pytest.mark.parametrize(("shape", "make"), CASES)
def test_layers_run_where_the_samples_are(shape, make, strategy):
    tolerance = 1e-11
    if shape == VOLUME:  # TensorFlow pools no float64.
        keras.config.set_dtype_policy("float32")
        tolerance = 1e-5
    model = shaken(between(make(), shape))
    plan = {".*": {"split": "samples", "shards": (5, 1, 3)}}
    parallel = split(model, strategy, plan)
    # Two samples, none and one.
    x = numbers((3, *shape))
    same(slopes(parallel, x), slopes(model, x), tolerance)
    kinds = by_samples.in_between(model, parallel, x)
    assert kinds
    # Keras makes masks by operations of its own.
    masks = {"not_equal", "any"}
    assert {kinds[name] for name in kinds if name not in masks} == {
        SampleLayout
    }, kinds


@pytest.mark.parametrize(
    ("shape", "make"),
    [
        slow((ROW, ROWS["masked lstm"])),
        slow((ROW, ROWS["both directions"])),
        (IMAGE, IMAGES["max pooling"]),
        slow((IMAGE, IMAGES["global max"])),
        slow((IMAGE, IMAGES["self-attention"])),
        slow((IMAGE, IMAGES["ops.min"])),
    ],
)
def test_devices_without_samples_of_batches_of_unknown_size(
    shape, make, strategy
):
    """As the last batch of `fit` may be."""
    model = shaken(between(make(), shape))
    parallel = split(model, strategy)

    @tf.function(
        input_signature=[tf.TensorSpec((None, *shape), "float64")],
        autograph=False,
    )
    def traced(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = keras.tree.flatten(parallel(x, training=True))
            loss = tf.add_n([tf.reduce_sum(tf.sin(y)) for y in outputs])
        grads = tape.gradient(loss, [x, *parallel.trainable_variables])
        return [tf.convert_to_tensor(y) for y in (*outputs, *grads)]

    for batch in (7, 1):
        x = numbers((batch, *shape))
        same(map(np.asarray, traced(x)), slopes(model, x), 1e-11)


@pytest.mark.parametrize("case", JOINED)
def test_what_mixes_samples_runs_on_the_chief(case, strategy):
    model = shaken(between(JOINED[case](), IMAGE, batch=6))
    parallel = split(model, strategy)
    x = numbers((6, *IMAGE))
    same(slopes(parallel, x), slopes(model, x), 1e-11)
    assert by_samples.layouts(parallel, x)["joined"] is None


def test_masks_reach_the_loss(strategy):
    """Keras weighs losses by the mask of the output."""
    mask = in_turn(L.ReLU(), L.Masking(), L.LSTM(3, return_sequences=True))
    model = shaken(between(lambda y: [mask(y)], ROW))
    parallel = split(model, strategy)
    x, y = numbers((5, *ROW)), numbers((5, 6, 3), 1)
    losses = []
    for one in (model, parallel):
        one.compile(loss="mse")
        losses.append(one.evaluate(x, y, verbose=0))
    assert losses[1] == pytest.approx(losses[0], rel=1e-11)
    # It masks something.
    unmasked = keras.losses.MeanSquaredError()(y, model.predict(x, verbose=0))
    assert abs(losses[0] - float(unmasked)) > 1e-3


def test_losses_of_some_samples_are_refused(strategy):
    parallel = split(between(Penalized(name="mine"), IMAGE), strategy)
    with pytest.raises(ValueError, match="'mine' to add no losses"):
        parallel(numbers((5, *IMAGE)))
