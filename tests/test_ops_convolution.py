"""The op of convolutions for inference, and the layers that use it."""

import itertools
import subprocess
import sys

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf
from test_fused import needed
from test_ops_channels import near
from test_ops_channels import numbers

import tf_convpar as convpar
from tf_convpar import ops
from tf_convpar.ops import Epilogue

L = keras.layers
ACTIVATIONS = {
    "linear": lambda u: u,
    "relu": lambda u: np.maximum(u, 0),
    "relu6": lambda u: np.clip(u, 0, 6),
    "silu": lambda u: u / (1 + np.exp(-u)),
    "gelu": lambda u: u * scipy.special.ndtr(u),
}
# Images and windows, with strides and padding. Panels that are full or not,
# more pixels than a band, lines that are long, short and of no even number of
# groups, windows that leave pixels out, and that are larger than the image.
CASES = [
    ((1, 7, 7, 96), (1, 1), 48, 1, "valid"),
    ((3, 9, 9, 33), (1, 1), 100, 1, "same"),
    ((2, 30, 31, 16), (1, 1), 64, 2, "valid"),
    ((1, 1, 1, 300), (1, 1), 33, 1, "valid"),
    ((2, 30, 31, 16), (3, 3), 40, 1, "same"),
    ((2, 21, 12, 5), (3, 3), 32, 2, "valid"),
    ((3, 4, 5, 70), (3, 3), 64, 1, "same"),
    ((1, 9, 17, 40), (1, 7), 33, 1, "same"),
    ((2, 13, 9, 3), (5, 2), 3, 3, "same"),
    ((1, 2, 12, 8), (5, 3), 16, 1, "same"),
    ((1, 7, 20, 130), (2, 2), 70, 2, "valid"),
    ((0, 3, 3, 4), (3, 3), 5, 1, "same"),
    # Rows that would lie in the same lines of a cache; few filters.
    ((2, 9, 9, 1024), (1, 1), 10, 1, "valid"),
    ((1, 17, 18, 512), (1, 1), 40, 2, "valid"),
    ((2, 8, 16, 1024), (1, 1), 16, 2, "valid"),
    # A large kernel that is read as it lies.
    ((3, 1, 1, 1051), (1, 1), 1003, 1, "valid"),
]
# Zeros around an image, and the others.
WITH_ZEROS = [
    ((3, 3, 3, 3), (2, 23, 20, 3), (7, 7), 64, 2, "valid"),
    ((0, 1, 0, 1), (1, 12, 14, 8), (3, 3), 32, 2, "valid"),
    ((2, 0, 1, 3), (3, 4, 5, 16), (3, 3), 40, 1, "same"),
    ((1, 2, 0, 0), (2, 6, 9, 5), (1, 1), 33, 1, "valid"),
]


@pytest.fixture(autouse=True)
def native():
    if not ops.load():
        pytest.skip(ops.build_report().verdict)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("case", CASES)
def test_values(case, activation):
    shape, window, filters, stride, padding = case
    x, k = numbers(shape, 1), numbers((*window, shape[-1], filters), 2)
    # Sums that activations leave as they are, mostly.
    k /= np.float32(np.sqrt(k[..., 0].size))
    vectors = numbers((2, filters), 3)
    exact = tf.nn.conv2d(
        x.astype("float64"), k.astype("float64"), stride, padding.upper()
    ).numpy()
    added = numbers(exact.shape, 4)
    for scale, offset, summand in itertools.product(
        (None, vectors[0]), (None, vectors[1]), (None, added)
    ):
        expected = exact if scale is None else exact * scale
        expected = expected if offset is None else expected + offset
        expected = expected if summand is None else expected + summand
        expected = ACTIVATIONS[activation](expected)
        for native in (True, False):
            y = ops.convolution(
                *(x, k, Epilogue(scale, offset, summand, activation)),
                stride=stride,
                padding=padding,
                native=native,
            )
            assert y.shape == expected.shape
            near(y, expected, 1e-5)


@pytest.mark.parametrize("case", WITH_ZEROS)
def test_zeros_around_images(case):
    zeros, shape, window, filters, stride, padding = case
    x, k = numbers(shape, 1), numbers((*window, shape[-1], filters), 2)
    top, bottom, left, right = zeros
    wide = np.pad(x, [(0, 0), (top, bottom), (left, right), (0, 0)])
    exact = tf.nn.conv2d(
        wide.astype("float64"), k.astype("float64"), stride, padding.upper()
    )
    options = {"stride": stride, "padding": padding, "zeros": zeros}
    for native in (True, False):
        values = [tf.constant(x), tf.constant(k)]
        with tf.GradientTape() as tape:
            tape.watch(values)
            y = ops.convolution(*values, **options, native=native)
        near(y, exact.numpy(), 1e-5)
        found = tape.gradient(y, values, y)
        with tf.GradientTape() as tape:
            given = [tf.constant(wide), values[1]]
            tape.watch(given)
            z = tf.nn.conv2d(*given, stride, padding.upper())
        by_x, by_k = tape.gradient(z, given, z)
        rows, columns = (
            slice(n, n + size)
            for n, size in zip((top, left), shape[1:3], strict=True)
        )
        near(found[0], by_x.numpy()[:, rows, columns], 1e-5)
        near(found[1], by_k.numpy(), 1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("stride", [1, 2])
def test_gradients(activation, stride):
    size = 5 if stride == 1 else 3
    shapes = [(2, 5, 5, 6), (3, 3, 6, 4), 4, 4, (2, size, size, 4)]
    given = [numbers(s, i) for i, s in enumerate(shapes)]
    found = []
    for native in (True, False):
        x, kernel, scale, offset, summand = values = [
            tf.constant(v) for v in given
        ]
        with tf.GradientTape() as outer:
            outer.watch(values)
            with tf.GradientTape() as tape:
                tape.watch(values)
                y = ops.convolution(
                    *(x, kernel, Epilogue(scale, offset, summand, activation)),
                    stride=stride,
                    padding="same",
                    native=native,
                )
            first = tape.gradient(y, values, y)
            total = tf.add_n([tf.reduce_sum(g * g) for g in first])
        found.append([*first, *outer.gradient(total, values)])
    for a, b in zip(*found, strict=True):
        near(a, b.numpy(), 1e-4)


def test_in_float64_gradients_are_exact():
    """The twin's; that of the compiled op is the same formula."""
    shapes = [(2, 3, 3, 4), (2, 2, 4, 5), 5, 5, (2, 2, 2, 5)]
    values = [
        tf.constant(numbers(s, i), tf.float64) for i, s in enumerate(shapes)
    ]

    def run(x, kernel, scale, offset, summand):
        return ops.convolution(
            x, kernel, Epilogue(scale, offset, summand, "silu")
        )

    theory, numeric = tf.test.compute_gradient(run, values, delta=1e-5)
    for a, b in zip(theory, numeric, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8)


@pytest.mark.parametrize("case", CASES)
def test_shapes_are_known_before(case):
    shape, window, filters, stride, padding = case

    @tf.function(autograph=False)
    def run(x):
        kernel = tf.zeros((*window, shape[-1], filters))
        return ops.convolution(x, kernel, stride=stride, padding=padding)

    graph = run.get_concrete_function(tf.TensorSpec([None, *shape[1:]]))
    found = run(tf.zeros(shape)).shape
    assert graph.structured_outputs.shape[1:] == found[1:]


_THREADS = """
import sys, numpy as np, tensorflow as tf
from tf_convpar import ops
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
rng = np.random.default_rng(0)
found = []
for n, size in ((1, 7), (8, 28)):
    x = rng.normal(size=(n, size, size, 40)).astype("float32")
    k = rng.normal(size=(3, 3, 40, 200)).astype("float32")
    silu = ops.Epilogue(activation="silu")
    y = ops.convolution(x, k, silu, padding="same", native=True)
    found.append(y.numpy().ravel())
x = rng.normal(size=(2, 1, 1, 1100)).astype("float32")
k = rng.normal(size=(1, 1, 1100, 1000)).astype("float32")
found.append(ops.convolution(x, k, native=True).numpy().ravel())
np.save(sys.argv[2], np.concatenate(found))
"""


@pytest.mark.slow
def test_threads_and_sets_of_instructions(tmp_path, monkeypatch):
    def run(threads):
        to = tmp_path / "found.npy"
        subprocess.run(
            [sys.executable, "-c", _THREADS, str(threads), str(to)],
            check=True,
            capture_output=True,
        )
        return np.load(to)

    first = run(1)
    np.testing.assert_array_equal(first, run(3))
    for widest in ("avx2", "base"):
        monkeypatch.setenv("TF_CONVPAR_WIDEST_ISA", widest)
        near(run(1), first, 1e-5)


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.assign(v * 2.0),
        lambda v: v.assign_sub(tf.ones_like(v)),
        lambda v: v.scatter_nd_update([[0, 0, 0, 0]], [7.0]),
        lambda v: v.assign(tf.identity(v)),
    ],
    ids=["assigned", "in place", "a number of it", "the same again"],
)
@pytest.mark.parametrize("by", ["product", "winograd", "a window"])
def test_a_kernel_that_changes_is_read_anew(change, by):
    window = (1, 1) if by == "product" else (3, 3)
    x, k = numbers((2, 6, 6, 8), 1), tf.Variable(numbers((*window, 8, 40), 2))
    algorithm = {"product": "gemm", "winograd": "winograd"}.get(by, "auto")

    @tf.function
    def predict():
        return convpar.algorithms.convolve(
            *(tf.constant(x), k),
            epilogue=Epilogue(remember=True),
            algorithm=algorithm,
        )

    for _ in range(3):
        near(predict(), tf.nn.convolution(x, k).numpy(), 1e-5)
        near(predict(), tf.nn.convolution(x, k).numpy(), 1e-5)
        change(k)


def test_factors_that_change_are_read_anew():
    x, k = numbers((2, 6, 6, 8), 1), numbers((3, 3, 8, 40), 2)
    scale = tf.Variable(numbers(40, 3))

    @tf.function
    def predict():
        scaled = Epilogue(scale, remember=True)
        return ops.convolution(tf.constant(x), k, scaled)

    for change in (scale.assign_add, scale.assign):
        near(predict(), tf.nn.conv2d(x, k, 1, "VALID").numpy() * scale, 1e-5)
        change(tf.ones(40))
        near(predict(), tf.nn.conv2d(x, k, 1, "VALID").numpy() * scale, 1e-5)


def test_refuses_what_does_not_fit():
    x, k = numbers((1, 4, 4, 3), 1), numbers((1, 1, 4, 5), 2)
    error = tf.errors.InvalidArgumentError
    with pytest.raises(error, match="Expected images"):
        ops.convolution(x, k, native=True)
    with pytest.raises(error, match="Expected images"):
        ops.convolution(x, numbers((4, 5), 2), native=True)
    k = numbers((1, 1, 3, 5), 2)
    with pytest.raises(error, match="of 5 values"):
        ops.convolution(x, k, Epilogue(np.ones(3, "float32")), native=True)
    for shape in ((1, 4, 4, 3), (4, 3)):
        with pytest.raises(error, match="Expected a summand"):
            added = Epilogue(added=numbers(shape, 1))
            ops.convolution(x, k, added, native=True)
    with pytest.raises(error, match="stride to be an integer from 1"):
        ops.convolution(x, k, stride=0, native=True)


def model():
    keras.utils.set_random_seed(3)
    inputs = keras.Input((5, 6, 96))
    x = L.Conv2D(80, 1, strides=2, use_bias=False)(inputs)
    x = first = L.ReLU(6.0)(L.BatchNormalization()(x))
    x = L.Conv2D(72, 3, padding="same", activation="relu")(x)
    x = L.Conv2D(80, 1)(x)
    x = L.ReLU()(L.Add()([L.BatchNormalization()(x), first]))
    x = L.Conv2D(80, (1, 3), padding="same", use_bias=False)(kept := x)
    x = kept = L.Add()([kept, L.BatchNormalization()(x)])
    x = L.SeparableConv2D(80, 3, padding="same", use_bias=False)(x)
    x = L.Add()([L.Activation("silu")(L.BatchNormalization()(x)), kept])
    made = keras.Model(inputs, L.GlobalAveragePooling2D()(x))
    for layer in made.layers:
        if isinstance(layer, L.BatchNormalization):
            layer.moving_mean.assign(numbers(layer.moving_mean.shape, 5))
            layer.moving_variance.assign_add(
                np.abs(numbers(layer.moving_mean.shape, 6))
            )
    return made


def test_models_predict_as_those_of_keras_before_and_after_they_learn():
    plain = model()
    fast = convpar.parallelize(model(), algorithm="auto")
    x, y = numbers((6, 5, 6, 96), 1), numbers((6, 80), 2)
    for one in (plain, fast):
        one.compile("sgd", "mse")
    predict = tf.function(
        lambda x: fast(x, training=False), autograph=False
    ).get_concrete_function(tf.TensorSpec((6, 5, 6, 96)))
    # What follows is a part of each; as they are they are not needed. One sum
    # is of an activation that is made before, and one of vectors, for a bias.
    kinds = needed(predict.graph)
    assert kinds.count("TfConvpar>Convolution") == 5
    assert kinds.count("AddV2") == 2
    assert not {"Relu", "Relu6", "Rsqrt", "TfConvpar>ScaleChannels"} & {*kinds}
    for _ in range(2):
        near(fast.predict_on_batch(x), plain.predict(x, verbose=0), 1e-5)
        near(predict(tf.constant(x)), plain.predict(x, verbose=0), 1e-5)
        for one in (plain, fast):
            one.fit(x, y, batch_size=6, epochs=2, verbose=0)
    for a, b in zip(plain.get_weights(), fast.get_weights(), strict=True):
        near(b, a, 1e-5)


@pytest.mark.parametrize("rank", [1, 3])
def test_single_pixels_of_sequences_and_volumes(rank):
    inputs = keras.Input((*[4] * rank, 24))
    kind = {1: L.Conv1D, 3: L.Conv3D}[rank]
    x = kind(40, 1, use_bias=False)(inputs)
    x = L.Add()([L.BatchNormalization()(x), kind(40, 1)(inputs)])
    plain = keras.Model(inputs, L.ReLU()(x))
    fast = convpar.parallelize(plain, algorithm="auto")
    given = numbers((3, *[4] * rank, 24), 1)
    near(fast.predict_on_batch(given), plain.predict_on_batch(given), 1e-5)
