"""The kernel gradient of depthwise convolutions, and the layers that use it."""

import itertools

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf
from cases import but_slow
from test_ops_channels import near
from test_ops_channels import numbers

import tf_convpar as convpar
from tf_convpar import ops

L = keras.layers
# Image, channels, window, stride: channels that fill vectors or do not, windows
# wider than the image, axes that differ, one image and many.
CASES = [
    ((2, 9, 9), 24, (5, 5), 1),
    ((1, 8, 11), 19, (7, 7), 1),
    ((9, 7, 5), 8, (3, 5), 1),
    ((3, 10, 9), 35, (5, 5), 2),
    ((2, 3, 4), 16, (7, 7), 1),
    ((2, 13, 12), 17, (9, 1), 3),
    ((8, 5, 5), 3, (2, 4), 2),
]


@pytest.fixture
def native():
    if not ops.load():
        pytest.skip(ops.build_report().verdict)


def by_definition(x, window, stride, padding):
    """The window that each feature map sees, of an image with its zeros."""
    before = []
    for size, length in zip(x.shape[1:3], window, strict=True):
        out = -(-size // stride)
        zeros = max(0, (out - 1) * stride + length - size)
        before.append((zeros // 2, zeros - zeros // 2))
    if padding == "same":
        x = np.pad(x, [(0, 0), *before, (0, 0)])
    seen = np.lib.stride_tricks.sliding_window_view(x, window, (1, 2))
    return seen[:, ::stride, ::stride]


@pytest.mark.parametrize(
    ("image", "channels", "window", "stride", "padding"),
    [
        (*case, padding)
        for case in CASES
        for padding in ("same", "valid")
        if padding == "same" or min(case[0][1:]) >= max(case[2])
    ],
)
def test_values(image, channels, window, stride, padding, native):
    x = numbers((*image, channels), 1)
    seen = by_definition(x.astype("float64"), window, stride, padding)
    dy = numbers(seen.shape[:4], 2)
    expected = np.einsum("nijcab,nijc->abc", seen, dy.astype("float64"))
    for own in (True, False):
        found = ops.depthwise_kernel_gradient(
            *(x, dy, window, stride, padding), native=own
        )
        near(found, expected, 1e-5)


ACTIVATIONS = {
    "linear": lambda u: u,
    "relu": lambda u: np.maximum(u, 0),
    "relu6": lambda u: np.clip(u, 0, 6),
    "silu": lambda u: u / (1 + np.exp(-u)),
    "gelu": lambda u: u * scipy.special.ndtr(u),
}


@pytest.mark.parametrize("zeros", [(0, 0, 0, 0), (0, 1, 0, 1), (3, 1, 2, 0)])
@pytest.mark.parametrize(
    ("image", "channels", "window", "stride"),
    [*CASES, ((3, 14, 30), 24, (3, 3), 1), ((2, 30, 15), 40, (3, 3), 2)],
)
def test_feature_maps(image, channels, window, stride, zeros, native):
    """Wide enough for columns side by side, and not; around every border."""
    top, bottom, left, right = zeros
    x = numbers((*image, channels), 1)
    around = [(0, 0), (top, bottom), (left, right), (0, 0)]
    kernel, bias = numbers((*window, channels), 2), numbers((channels,), 3)
    wide = [a.astype("float64") for a in (np.pad(x, around), kernel, bias)]
    for padding, (name, activation) in itertools.product(
        ("same", "valid"), ACTIVATIONS.items()
    ):
        if padding == "valid" and min(wide[0].shape[1:3]) < max(window):
            continue
        seen = by_definition(wide[0], window, stride, padding)
        given = np.einsum("nijcab,abc->nijc", seen, wide[1]) + wide[2]
        for own in (True, False):
            found = ops.depthwise(
                *(x, kernel, ops.Epilogue(bias=bias, activation=name)),
                *(stride, padding, zeros),
                native=own,
            )
            near(found, activation(given), 1e-5)


@pytest.mark.parametrize("zeros", [(0, 0, 0, 0), (1, 2, 0, 1)])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_of_feature_maps(stride, activation, zeros, native):
    """As those of TensorFlow's ops."""
    given = [
        tf.constant(numbers(shape, i))
        for i, shape in enumerate([(2, 9, 8, 12), (3, 3, 12), (12,)])
    ]
    found = []
    for own in (True, False):
        with tf.GradientTape() as tape:
            tape.watch(given)
            x, kernel, bias = given
            y = ops.depthwise(
                *(x, kernel, ops.Epilogue(bias=bias, activation=activation)),
                *(stride, "same", zeros),
                native=own,
            )
            total = tf.reduce_sum(tf.square(y))
        found.append(tape.gradient(total, given))
    for a, b in zip(*found, strict=True):
        near(a, b, 1e-5)


def test_shapes_are_known_before(native):
    for size, padding, out in (
        ((9, 8), "same", (5, 4)),
        ((9, None), "valid", (4, None)),
    ):

        @tf.function(input_signature=[tf.TensorSpec((None, *size, 12))])
        def run(x, padding=padding):
            y = ops.depthwise(x, tf.ones((3, 3, 12)), stride=2, padding=padding)
            run.shape = tuple(y.shape)
            return y

        run.get_concrete_function()
        assert run.shape == (None, *out, 12)
    assert ops.depthwise(
        np.ones((0, 9, 9, 3), "float32"), np.ones((3, 3, 3), "float32")
    ).shape == (0, 9, 9, 3)


@pytest.mark.parametrize("batch", [0, 3])
def test_threads_change_no_digit(batch, native, tmp_path):
    """And no images give no gradient."""
    x, dy = numbers((batch, 12, 12, 20), 1), numbers((batch, 12, 12, 20), 2)
    found = [
        ops.depthwise_kernel_gradient(x, dy, (5, 5), native=True)
        for _ in range(3)
    ]
    assert found[0].shape == (5, 5, 20)
    assert bool(tf.reduce_any(found[0] != 0)) == (batch > 0)
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def test_wrong_shapes_are_refused(native):
    x = np.ones((2, 6, 6, 3), "float32")
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"Expected gradients.*\[2,3,3,3\]"
    ):
        ops.depthwise_kernel_gradient(x, x, (5, 5), 2)


def test_gradients_of_the_gradient(native):
    """It is linear in both, so a difference of two values is exact."""
    x, dy = numbers((2, 7, 8, 5), 1), numbers((2, 4, 4, 5), 2)
    weights = numbers((5, 5, 5), 3)
    given = [tf.constant(x), tf.constant(dy)]

    def value(x, dy):
        dk = ops.depthwise_kernel_gradient(x, dy, (5, 5), 2, native=True)
        return tf.reduce_sum(dk * weights)

    with tf.GradientTape() as tape:
        tape.watch(given)
        found = value(*given)
    by_x, by_dy = tape.gradient(found, given)
    near(tf.reduce_sum(by_x * x), found, 1e-4)
    near(tf.reduce_sum(by_dy * dy), found, 1e-4)


def models():
    """Of layers whose kernels are of one channel each."""
    keras.utils.set_random_seed(1)
    for layers in (
        [L.DepthwiseConv2D(5, padding="same", activation="relu")],
        [L.DepthwiseConv2D(7, strides=2, use_bias=False)],
        [L.SeparableConv2D(6, 5, padding="same")],
        [L.Conv2D(8, 7, groups=8, padding="same")],
        [L.DepthwiseConv2D((5, 6)), L.DepthwiseConv2D((6, 5), padding="same")],
        # Not with the op: small, of several kernels, with dilation.
        [L.DepthwiseConv2D(3), L.DepthwiseConv2D(5, depth_multiplier=2)],
        [L.DepthwiseConv2D(5, dilation_rate=2, padding="same")],
    ):
        head = [L.GlobalAveragePooling2D(), L.Dense(3)]
        model = keras.Sequential([keras.Input((16, 16, 8)), *layers, *head])
        model.compile("sgd", "mse")
        yield model


@pytest.mark.parametrize("index", but_slow(range(7), [0, 3, 5]))
def test_layers_learn_as_those_of_keras(index, native, monkeypatch):
    used = []
    own = ops.depthwise_kernel_gradient
    monkeypatch.setattr(
        ops,
        "depthwise_kernel_gradient",
        lambda *a, **k: used.append(a) or own(*a, **k),
    )
    plain, other = (list(models())[index] for _ in range(2))
    fast = convpar.parallelize(other, algorithm="auto")
    x, y = numbers((24, 16, 16, 8), 1), numbers((24, 3), 2)
    losses = [
        m.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
        for m in (plain, fast)
    ]
    assert bool(used) == (index < 5)
    near(losses[1]["loss"], losses[0]["loss"], 1e-5)
    for a, b in zip(plain.get_weights(), fast.get_weights(), strict=True):
        near(b, a, 1e-5)
    near(fast.predict(x, verbose=0), plain.predict(x, verbose=0), 1e-5)
