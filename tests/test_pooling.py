"""The gradient of pooled maxima: against a sum by definition, and Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_fused import needed
from test_ops_channels import near
from test_ops_channels import numbers

import tf_convpar as convpar
from tf_convpar import ops
from tf_convpar.placement import Layout
from tf_convpar.placement import ShardedTensor
from tf_convpar.sharding import Fused

L = keras.layers
# Image, channels, window, stride: channels that fill vectors or do not, windows
# that overlap, that touch and that leave gaps, wider than high.
CASES = [
    ((2, 9, 9), 24, (3, 3), 2),
    ((1, 8, 10), 19, (2, 2), 2),
    ((3, 7, 5), 8, (3, 3), 1),
    ((2, 11, 10), 5, (2, 3), 4),
    ((2, 6, 9), 16, (5, 2), 3),
]


@pytest.fixture(autouse=True)
def native():
    if not ops.load():
        pytest.skip(ops.build_report().verdict)


def by_definition(x, dy, window, stride, padding):
    """Gradients of windows go to their first largest pixel."""
    dx = np.zeros(x.shape)
    before = []
    for size, length, out in zip(
        x.shape[1:], window, dy.shape[1:3], strict=False
    ):
        zeros = max(0, (out - 1) * stride + length - size)
        before.append(zeros // 2 if padding == "same" else 0)
    for n, i, j, c in np.ndindex(dy.shape):
        pixels = [
            (n, top, left, c)
            for top in range(i * stride - before[0], x.shape[1])
            for left in range(j * stride - before[1], x.shape[2])
            if 0 <= top < i * stride - before[0] + window[0]
            and 0 <= left < j * stride - before[1] + window[1]
        ]
        dx[max(pixels, key=lambda at: x[at])] += dy[n, i, j, c]
    return dx


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize(("image", "channels", "window", "stride"), CASES)
def test_gradients(image, channels, window, stride, padding):
    """Of few numbers, so that many are alike."""
    shape = (*image, channels)
    x = np.random.default_rng(1).integers(0, 4, shape).astype("float32")
    found = []
    for own in (True, False):
        given = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(given)
            y = ops.max_pool(given, window, stride, padding, native=own)
        dy = numbers(y.shape, 2)
        found.append(tape.gradient(y, given, dy))
        np.testing.assert_array_equal(
            y, tf.nn.max_pool2d(x, window, stride, padding.upper())
        )
    expected = by_definition(x, dy, window, stride, padding)
    for dx in found:
        near(dx, expected)


def test_second_order():
    """As TensorFlow's."""
    x, dy = numbers((2, 7, 7, 12), 1), numbers((2, 4, 4, 12), 2)
    found = []
    for own in (True, False):
        given, upstream = tf.constant(x), tf.constant(dy)
        with tf.GradientTape() as second:
            second.watch(upstream)
            with tf.GradientTape() as first:
                first.watch(given)
                y = ops.max_pool(given, (3, 3), 2, "same", native=own)
            dx = first.gradient(y, given, upstream)
            total = tf.reduce_sum(dx * dx * tf.sin(given))
        found.append(second.gradient(total, upstream))
    near(*found)


def test_what_is_no_number_loses_no_gradient():
    x = np.ones((1, 4, 4, 11), "float32")
    x[0, 1, 1] = np.nan
    given = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(given)
        y = ops.max_pool(given, (2, 2), 2, native=True)
    dx = tape.gradient(y, given, tf.ones_like(y))
    assert float(tf.reduce_sum(dx)) == y.numpy().size


@pytest.mark.parametrize("shape", [(0, 4, 4, 3), (2, 4, 1, 3)])
def test_no_images_and_no_windows(shape):
    """TensorFlow's own op leaves what memory held where there is no window."""
    given = tf.zeros(shape)
    with tf.GradientTape() as tape:
        tape.watch(given)
        y = ops.max_pool(given, (2, 2), 2, native=True)
    dx = tape.gradient(y, given)
    assert dx.shape == shape
    assert not dx.numpy().any()


@pytest.mark.parametrize(
    ("dy", "stride", "message"),
    [
        ((1, 3, 2, 3), 2, r"\[1,2,2,3\], as of images .* and \[1,3,2,3\]"),
        ((1, 2, 2, 3), 0, "the stride to be an integer from 1"),
    ],
)
def test_what_it_does_not_take(dy, stride, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops.module().tf_convpar_max_pool_gradient(
            images=tf.ones((1, 4, 4, 3)),
            maxima=tf.ones((1, 2, 2, 3)),
            gradients=tf.ones(dy),
            window=[2, 2],
            stride=stride,
            padding="VALID",
        )


def test_a_model_trains_as_plain_keras_does():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((12, 12, 3))
    x = L.Conv2D(10, 3, padding="same", activation="relu")(inputs)
    x = L.MaxPooling2D(3, strides=2, padding="same")(x)
    x = L.MaxPooling2D((2, 1), strides=(2, 1))(L.Conv2D(12, 3)(x))
    outputs = L.Dense(4)(L.Flatten()(x))
    plain = keras.Model(inputs, outputs)
    plain.compile("sgd", "mse")
    ours = convpar.parallelize(plain, algorithm="auto")
    pools = [x for x in ours.layers if isinstance(x, L.MaxPooling2D)]
    fused = [isinstance(vars(layer).get("call"), Fused) for layer in pools]
    assert fused == [True, False]  # Strides that differ are left alone.
    x, y = numbers((16, 12, 12, 3), 1), numbers((16, 4), 2)
    for model in (plain, ours):
        model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False)
    for a, b in zip(plain.get_weights(), ours.get_weights(), strict=True):
        near(b, a, 1e-5)
    names = [op.type for op in _graph_of(ours, x, y).get_operations()]
    assert names.count("TfConvpar>MaxPoolGradient") == 1


def test_shards_that_nobody_expected_are_joined():
    devices = ("/device:CPU:0", "/device:CPU:0")
    layout = Layout(devices[0], devices, (3, 5))
    x = numbers((2, 6, 6, 8), 1)
    layer = L.MaxPooling2D()
    shards = ShardedTensor(tf.split(tf.constant(x), (3, 5), -1), layout)
    np.testing.assert_array_equal(Fused(layer)(shards), layer(x))


def _graph_of(model, x, y):
    @tf.function
    def gradients(x, y):
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x, training=True))
        return tape.gradient(loss, model.trainable_variables)

    return gradients.get_concrete_function(tf.constant(x), tf.constant(y)).graph


@pytest.mark.parametrize("channels", [5, 24, 83])
@pytest.mark.parametrize("kind", ["max", "average"])
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize(
    ("image", "window", "stride"),
    [
        ((2, 9, 9), (3, 3), 2),
        ((1, 8, 10), (2, 2), 2),
        ((3, 7, 5), (3, 3), 1),
        ((2, 11, 10), (2, 3), 4),
        ((2, 2, 3), (5, 4), 3),
        ((4, 28, 28), (28, 28), 1),
        ((0, 5, 5), (2, 2), 1),
    ],
)
def test_pools_of_inference(image, window, stride, padding, kind, channels):
    x = numbers((*image, channels), 1)
    own = tf.nn.max_pool2d if kind == "max" else tf.nn.avg_pool2d
    fits = padding == "same" or all(np.greater_equal(image[1:], window))
    if fits:
        exact = own(x.astype("float64"), window, stride, padding.upper())
    else:
        # TensorFlow's own pooling fails there with oneDNN.
        exact = tf.zeros((image[0], 0, 0, channels))
    for native in (True, False) if fits else (True,):
        given = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(given)
            y = ops.pool(
                *(given, window, stride, padding), kind=kind, native=native
            )
        near(y, exact.numpy())
        if not tf.size(y):
            continue  # TensorFlow's gradient of no maxima is any numbers.
        with tf.GradientTape() as expected:
            expected.watch(given)
            z = own(given, window, stride, padding.upper())
        near(tape.gradient(y, given, y), expected.gradient(z, given, z).numpy())


def test_zeros_around_images_count_among_the_largest():
    x = -np.abs(numbers((2, 6, 7, 19), 1)) - 1
    zeros = (1, 2, 0, 3)
    wide = np.pad(x, [(0, 0), (1, 2), (0, 3), (0, 0)])
    for native in (True, False):
        y = ops.pool(x, (3, 2), 2, zeros=zeros, native=native)
        near(y, tf.nn.max_pool2d(wide, (3, 2), 2, "VALID").numpy())
    for options in ({"padding": "same"}, {"kind": "average"}):
        with pytest.raises(tf.errors.InvalidArgumentError, match="Expected z"):
            ops.pool(x, (2, 2), 1, zeros=zeros, native=True, **options)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="the window to be 2"
    ):
        ops.pool(x, (2, 0), 1, native=True)


def test_models_pool_as_those_of_keras():
    inputs = keras.Input((12, 13, 20))
    x = L.Conv2D(24, 3, activation="relu")(inputs)
    x = L.MaxPooling2D(3, 2)(L.ZeroPadding2D(1)(x))
    y = L.AveragePooling2D(3, 1, padding="same")(x)
    z = L.MaxPooling2D(3, 1, padding="same")(x)
    x = L.Concatenate()([y, z, L.AveragePooling2D((2, 1), 1, "same")(x)])
    means = L.GlobalAveragePooling2D(keepdims=True)(x)
    x = L.Multiply()([x, means])
    plain = keras.Model(inputs, L.GlobalAveragePooling2D()(x))
    fast = convpar.parallelize(plain, algorithm="auto")
    given = numbers((3, 12, 13, 20), 1)
    near(fast.predict_on_batch(given), plain.predict_on_batch(given), 1e-5)
    near(fast(given), plain(given).numpy(), 1e-5)
    run = tf.function(lambda x: fast(x, training=False), autograph=False)
    graph = run.get_concrete_function(tf.TensorSpec(given.shape)).graph
    kinds = needed(graph)
    assert kinds.count("TfConvpar>Pool") == 6
    assert not {"MaxPool", "AvgPool", "Mean", "Pad", "PadV2"} & {*kinds}
