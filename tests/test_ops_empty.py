"""Ops of no images, no rows, no channels; and windows that fit into no image.

What comes out has the right shape. Gradients by kernels and biases are 0, and
not memory that nobody has written. TensorFlow's own ops are not to be relied on
here, least of all with oneDNN, which users have and `conftest.py` has not.
"""

import functools
import itertools
import os
import sys

import numpy as np
import processes
import pytest
import tensorflow as tf

from tf_convpar import ops
from tf_convpar.algorithms import Bilinear
from tf_convpar.algorithms import Geometry
from tf_convpar.ops import Epilogue

# Images, and how a window of 3x3 moves over them.
IMAGES = {
    "no images": (0, 4, 5, 2),
    "no rows": (2, 0, 5, 2),
    "no columns": (2, 4, 0, 2),
    "no channels": (2, 4, 5, 0),
    "too small": (2, 2, 5, 2),
    "nothing at all": (0, 0, 0, 0),
}
PADDINGS = ["same", "valid"]


def dirty(*sizes):
    """Leaves memory of such sizes full of what is not 0."""
    for size in sizes:
        tf.random.normal([size])


def along(size, stride, padding):
    return -(-size // stride) if padding == "same" else max(0, size - 2)


def made(shape, channels, padding, stride=1):
    batch, *image, _ = shape
    return (batch, *(along(n, stride, padding) for n in image), channels)


def traced(run, unknown):
    """The function at once, or of shapes of which the batch is unknown."""
    if not unknown:
        return run

    def call(*given):
        specs = [tf.TensorSpec([None, *x.shape[1:]]) for x in given]
        graph = tf.function(run, autograph=False).get_concrete_function(*specs)
        return graph(*given)

    return call


def value_and_gradients(run, given, unknown):
    def both(x, *others):
        operands = [x, *others]
        with tf.GradientTape() as tape:
            tape.watch(operands)
            y = run(*operands)
        return y, tape.gradient(y, operands, tf.ones_like(y))

    # Of what is given only images have a batch.
    rest = [tf.constant(v) for v in given[1:]]
    return traced(lambda x: both(x, *rest), unknown)(tf.constant(given[0]))


def check(run, given, shape, unknown=False):
    """The result's shape, and gradients that are all 0."""
    given = [np.ones(s, "float32") for s in given]
    dirty(*(v.size for v in given))
    y, gradients = value_and_gradients(run, given, unknown)
    assert y.shape == shape
    assert y.numpy().size == 0
    for gradient, value in zip(gradients, given, strict=True):
        assert gradient.shape == value.shape
        assert not gradient.numpy().any()


def windows(native):
    """Ops on windows, and what they have besides images of `n` channels."""
    how = {"native": native}
    return {
        "convolution": (
            lambda x, k, s, o, **move: ops.convolution(
                x, k, Epilogue(s, o, None, "silu"), **move, **how
            ),
            lambda n: [(3, 3, n, 4), (4,), (4,)],
        ),
        "depthwise": (
            lambda x, k, b, **move: ops.depthwise(
                x, k, Epilogue(bias=b, activation="gelu"), **move, **how
            ),
            lambda n: [(3, 3, n), (n,)],
        ),
        "max_pool": (
            lambda x, **move: ops.max_pool(
                x, (3, 3), **{"stride": 1} | move, **how
            ),
            lambda n: [],
        ),
        "pool": (
            lambda x, **move: ops.pool(
                x, (3, 3), **{"stride": 1} | move, **how
            ),
            lambda n: [],
        ),
        "means": (
            lambda x, **move: ops.pool(
                x, (3, 3), **{"stride": 1} | move, kind="average", **how
            ),
            lambda n: [],
        ),
    }


# With padding no image is too small.
MOVES = [
    case
    for case in itertools.product(IMAGES, PADDINGS)
    if case != ("too small", "same")
]
CASES = [
    (*move, name)
    for move, name in itertools.product(MOVES, windows(True))
    # A convolution of no channels is one of its offset.
    if (move[0], name) != ("no channels", "convolution")
]


@pytest.fixture(params=[True, False], ids=["native", "python"])
def native(request):
    if request.param and not ops.load():
        pytest.skip(ops.build_report().verdict)
    return request.param


@pytest.mark.parametrize(("images", "padding", "name"), CASES)
def test_windows(images, padding, name, native):
    shape = IMAGES[images]
    run, others = windows(native)[name]
    channels = 4 if name == "convolution" else shape[-1]
    for stride, unknown in itertools.product((1, 2), (False, True)):
        if padding == "valid" and stride == 2:
            continue
        check(
            functools.partial(run, stride=stride, padding=padding),
            [shape, *others(shape[-1])],
            made(shape, channels, padding, stride),
            unknown,
        )


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize(("images", "padding"), MOVES)
def test_a_depthwise_kernel_gradient(images, padding, unknown, native):
    """It is 0, and so are its own gradients."""
    shape = IMAGES[images]
    maps = made(shape, shape[-1], padding)

    def run(x, dy):
        with tf.GradientTape() as tape:
            tape.watch([x, dy])
            dk = ops.depthwise_kernel_gradient(
                x, dy, (3, 3), 1, padding, native=native
            )
        grads = tape.gradient(
            dk, [x, dy], tf.ones_like(dk), unconnected_gradients="zero"
        )
        return dk, *grads

    dirty(9 * shape[-1])
    found = traced(run, unknown)(tf.ones(shape), tf.ones(maps))
    for x, size in zip(found, ((3, 3, shape[-1]), shape, maps), strict=True):
        assert x.shape == size
        assert not x.numpy().any()


@pytest.mark.parametrize("images", ["no images", "no rows", "no channels"])
def test_second_derivatives_of_maxima(images, native):
    shape = IMAGES[images]
    x = tf.ones(shape)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = ops.max_pool(x, (3, 3), 1, "same", native=native)
        dx = tape.gradient(y, x, y * y)
        total = tf.reduce_sum(dx * dx)
    assert outer.gradient(total, x).shape == shape


def of_channels(native):
    """Ops on channels, of maps and of vectors of as many numbers."""
    how = {"native": native}
    return {
        "moments": lambda x, s, o: ops.channel_moments(x, **how) * s,
        "sums": lambda x, s, o: ops.channel_sums(x, x, o, **how) * s,
        "scaled": lambda x, s, o: ops.scale_channels(
            [x, x], [s, s], o, activation="silu", **how
        ),
        "biased": lambda x, s, o: ops.biased(x, o, "gelu", **how) * s,
        "layer": lambda x, s, o: ops.layer_normalization(x, s, o, **how),
        "group": lambda x, s, o: ops.group_normalization(
            x, 1, s, o, activation="relu", **how
        ),
        "activated": lambda x, s, o: ops.activated_gradient(
            x, x, s, o, s, o, "silu", **how
        ),
        "activated sums": lambda x, s, o: ops.activated_sums(
            x, x, s, s, o, "relu6", **how
        ),
    }


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0)])
@pytest.mark.parametrize("name", of_channels(True))
def test_channels(name, shape, native):
    """Of what is for each channel there may be some, which is 0 then."""
    n = shape[-1]
    given = [np.ones(s, "float32") for s in (shape, (n,), (n,))]
    dirty(2 * n)
    y, gradients = value_and_gradients(of_channels(native)[name], given, False)
    by_channel = name in ("moments", "sums", "activated sums")
    assert y.shape == ((2, n) if by_channel else shape)
    assert not y.numpy().any()
    for gradient, value in zip(gradients, given, strict=True):
        assert gradient is None or gradient.shape == value.shape
        assert gradient is None or not gradient.numpy().any()


@pytest.mark.parametrize("shapes", [[(0, 3), (0, 2)], [(4, 0), (4, 0)]])
def test_shards(shapes, native):
    sizes = [width for _, width in shapes]
    given = [np.ones(s, "float32") for s in shapes]
    joined, gradients = value_and_gradients(
        lambda *x: ops.concat_shards(x, native=native), given, False
    )
    assert joined.shape == (shapes[0][0], sum(sizes))
    assert [x.shape for x in gradients] == shapes
    (value,) = given[:1]
    cut = ops.split_shards(joined, sizes, dtypes="float16", native=native)
    assert [x.shape for x in cut] == shapes
    assert value.shape == shapes[0]


ALGORITHMS = [Bilinear("winograd", (2, 2)), Bilinear("fft", (4, 4))]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
@pytest.mark.parametrize(
    ("shape", "padding"),
    [
        ((0, 4, 5, 2), "same"),
        ((0, 4, 5, 2), "valid"),
        ((2, 0, 5, 2), "same"),
        ((2, 4, 0, 2), "same"),
        ((2, 2, 5, 2), "valid"),
        ((0, 0, 0, 0), "same"),
    ],
)
def test_bilinear_convolutions(shape, padding, algorithm):
    if not ops.load():
        pytest.skip(ops.build_report().verdict)
    *image, channels = shape[1:]
    g = Geometry(tuple(image), channels, 4, (3, 3), padding=padding)
    maps = made(shape, 4, padding)
    x, dy = tf.ones(shape), tf.ones(maps)
    k = tf.ones([3, 3, channels, 4])
    dirty(9 * channels * 4)
    y = algorithm.forward(x, k, g, Epilogue(bias=tf.ones([4])))
    dx = algorithm.input_gradient(dy, k, g, shape)
    dk = algorithm.kernel_gradient(x, dy, g)
    assert y.shape == maps
    assert dx.shape == shape
    assert dk.shape == k.shape
    assert not dk.numpy().any()


def test_offsets_alone(native):
    """Of images without channels, or rows but zeros, there is an offset."""
    offset = tf.constant([-1.0, 2.0, np.nan])
    expected = tf.nn.silu(offset)
    for shape, zeros in (((2, 4, 5, 0), 0), ((2, 0, 5, 2), 2)):
        for summand in (None, 1.0):
            kernel = tf.ones([3, 3, shape[-1], 3])
            rows = shape[1] + 2 * zeros - 2
            added = summand and tf.ones([2, rows, 3 + 2 * zeros, 3])
            y = ops.convolution(
                tf.zeros(shape),
                kernel,
                Epilogue(None, offset, added, "silu"),
                zeros=[zeros] * 4,
                native=native,
            )
            assert y.shape == (2, rows, 3 + 2 * zeros, 3)
            value = tf.nn.silu(offset + (summand or 0.0))
            np.testing.assert_allclose(y, np.broadcast_to(value, y.shape), 1e-5)
    y = ops.depthwise(
        tf.zeros([1, 0, 4, 3]),
        tf.ones([2, 2, 3]),
        Epilogue(bias=offset, activation="silu"),
        1,
        "valid",
        [2, 0, 0, 0],
        native=native,
    )
    np.testing.assert_allclose(y, np.broadcast_to(expected, (1, 1, 3, 3)), 1e-5)
    y = ops.pool(
        tf.zeros([1, 0, 4, 3]), (2, 2), 1, "valid", [2, 0, 0, 0], native=native
    )
    np.testing.assert_array_equal(y, np.zeros((1, 1, 3, 3)))


@pytest.mark.parametrize("relu", [False, True])
def test_a_bias_alone(relu):
    if not ops.load():
        pytest.skip(ops.build_report().verdict)
    bias = tf.constant([-1.0, 2.0, np.nan])
    expected = tf.nn.relu(bias) if relu else bias
    g = Geometry((4, 5), 0, 3, (3, 3), padding="same")
    after = Epilogue(bias=bias, activation="relu" if relu else "linear")
    y = ALGORITHMS[0].forward(
        tf.zeros([2, 4, 5, 0]), tf.zeros([3, 3, 0, 3]), g, after
    )
    np.testing.assert_array_equal(y, np.broadcast_to(expected, (2, 4, 5, 3)))


WITH_ONEDNN = """
import sys

sys.path.insert(0, sys.argv[1])
import pytest
from test_ops_empty import *

kinds = [True, False] if ops.load() else [False]
for native in kinds:
    for case in CASES:
        test_windows(*case, native)
    for move in MOVES:
        for unknown in (False, True):
            test_a_depthwise_kernel_gradient(*move, unknown, native)
    for images in ("no images", "no rows", "no channels"):
        test_second_derivatives_of_maxima(images, native)
    test_offsets_alone(native)
print("all")
"""


@pytest.mark.slow
def test_with_onednn():
    """As users have it; TensorFlow reads once whether it is on."""
    code, said = processes.run(
        [sys.executable, "-c", WITH_ONEDNN, os.path.dirname(__file__)],
        TF_ENABLE_ONEDNN_OPTS="1",
    )
    assert (code, said.splitlines()[-1:]) == (0, ["all"]), said[-3000:]
