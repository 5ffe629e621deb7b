"""Every algorithm, in each pass, against direct convolution in float64."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from cases import by_turns
from cases import every_second

from tf_convpar import algorithms
from tf_convpar.algorithms import FORWARD
from tf_convpar.algorithms import INPUT_GRADIENT
from tf_convpar.algorithms import KERNEL_GRADIENT
from tf_convpar.algorithms import PASSES
from tf_convpar.algorithms import Bilinear
from tf_convpar.algorithms import Direct
from tf_convpar.algorithms import Geometry
from tf_convpar.algorithms import Windows
from tf_convpar.algorithms import convolve
from tf_convpar.ops import Epilogue

# Relative error, in the Euclidean norm. oneDNN adds products one by one: errors
# of half a unit in the last of 24 bits add up as in a random walk, to 2 ** -25
# times the root of their number, 2.1e-6 for the longest sums here (4995).
BOUNDS = {"direct": 2.1e-6, "gemm": 1e-6, "fft": 1e-5, "winograd": 1e-4}
NAMES = ("direct", "gemm", "winograd", "winograd:2", "fft", "fft:5")
GEOMETRIES = [
    Geometry((17,), 3, 5, (3,), padding="same", batch=2),
    Geometry((40,), 17, 33, (7,), batch=3),
    Geometry((11, 13), 17, 33, (3, 3), padding="same", batch=2),
    Geometry((9, 9), 1, 1, (2, 2), batch=5),
    Geometry((3, 2), 3, 16, (3, 3), padding="same", batch=5),  # one tile
    Geometry((14, 14), 50, 64, (5, 5), batch=1),
    Geometry((20, 9), 32, 16, (4, 6), padding="same", batch=2),
    Geometry((12, 25), 3, 33, (7, 2), padding="same", batch=1),
    Geometry((10, 16), 5, 5, (1, 3), padding="same", batch=2),
    Geometry((16, 10), 5, 17, (3, 1), batch=2),
    Geometry((16, 13), 2, 5, (7, 7), batch=1),
    Geometry((5, 6, 7), 3, 16, (3, 3, 3), padding="same", batch=2),
    Geometry((4, 7, 9), 17, 5, (1, 3, 2), batch=1),
    # Spectra of kernels that are made a few panels at a time.
    Geometry((7, 7), 200, 330, (3, 3), padding="same", batch=5),
    Geometry((9, 7), 333, 220, (3, 5), batch=3),
    # Few channels and many filters: a panel and a few tiles at a time.
    Geometry((14, 14), 20, 500, (5, 5), batch=33),
]
IDS = [f"{g.image}x{g.channels}-{g.filters}-{g.window}" for g in GEOMETRIES]


def operands(geometry, dtype="float32", seed=0):
    """x, kernel and dy, normal."""
    rng = np.random.default_rng(seed)
    shapes = [
        (geometry.batch, *geometry.image, geometry.channels),
        (*geometry.window, geometry.channels, geometry.filters),
        (geometry.batch, *geometry.output, geometry.filters),
    ]
    return [tf.constant(rng.normal(size=shape), dtype) for shape in shapes]


def run(algorithm, geometry, which, x, kernel, dy):
    if which == FORWARD:
        return algorithm.forward(x, kernel, geometry)
    if which == INPUT_GRADIENT:
        return algorithm.input_gradient(dy, kernel, geometry, x.shape)
    return algorithm.kernel_gradient(x, dy, geometry)


def error(ours, exact):
    assert ours.shape == exact.shape
    difference = np.asarray(tf.cast(ours, tf.float64)) - np.asarray(exact)
    return np.linalg.norm(difference) / max(np.linalg.norm(exact), 1e-30)


@pytest.mark.parametrize("geometry", every_second(GEOMETRIES), ids=IDS)
def test_error_of_each_pass(geometry):
    small = operands(geometry)
    exact = [tf.cast(operand, tf.float64) for operand in small]
    for which in PASSES:
        expected = run(Direct(), geometry, which, *exact)
        for name in NAMES:
            algorithm = algorithms.named(name, geometry)
            if algorithm.refuses(geometry, which):
                continue
            bound = BOUNDS[algorithm.name.partition(":")[0]]
            result = run(algorithm, geometry, which, *small)
            assert result.dtype == tf.float32
            assert error(result, expected) <= bound, (name, which)


@pytest.mark.parametrize("geometry", every_second(GEOMETRIES), ids=IDS)
def test_twin_equals_op(geometry):
    for name in ("winograd", "fft"):
        algorithm = algorithms.named(name, geometry)
        if not isinstance(algorithm, Bilinear):
            continue
        twin = Bilinear(algorithm.kind, algorithm.tile, native=False)
        values = operands(geometry)
        for which in PASSES:
            a = run(algorithm, geometry, which, *values)
            b = run(twin, geometry, which, *values)
            assert a.shape == b.shape
            # Both round, in another order.
            bound = 2 * BOUNDS[algorithm.kind]
            assert error(a, tf.cast(b, tf.float64)) <= bound, which


@pytest.mark.parametrize("native", [None, False], ids=["op", "twin"])
@pytest.mark.parametrize("kind", ["winograd", "fft"])
def test_no_images_and_no_outputs(kind, native):
    algorithm = Bilinear(kind, (2, 2), native)
    none = Geometry((6, 6), 3, 5, (3, 3), batch=0)
    # TensorFlow's own convolution refuses to give maps of no pixels.
    tight = Geometry((2, 7), 3, 5, (3, 3), batch=2)
    for geometry in (none, tight):
        x, kernel, dy = operands(geometry)
        for which, like in zip(PASSES, (dy, x, kernel), strict=True):
            result = run(algorithm, geometry, which, x, kernel, dy)
            assert result.shape == like.shape
            np.testing.assert_array_equal(result, np.zeros(like.shape))


STRIDED = [
    Geometry((17,), 3, 5, (3,), strides=(2,), batch=2),
    Geometry((17, 20), 5, 7, (3, 3), strides=(2, 2), batch=2),
    Geometry((16, 13), 3, 4, (7, 5), strides=(2, 3), batch=1),
    Geometry((12, 15), 2, 3, (4, 1), strides=(2, 1), batch=2),
    # Phases without weights, and pixels after the last window.
    Geometry((17, 19), 3, 5, (2, 1), strides=(3, 4), batch=3),
    Geometry((9, 8, 7), 2, 3, (3, 2, 3), strides=(2, 2, 1), batch=2),
    Geometry((19,), 3, 5, (3,), dilation=(4,), batch=2),
    Geometry((17, 20), 5, 7, (3, 3), dilation=(2, 3), batch=2),
    Geometry((14, 14), 8, 8, (5, 3), dilation=(1, 2), batch=1),
]


@pytest.mark.parametrize(
    ("geometry", "padding"), by_turns(STRIDED, ["valid", "same"])
)
def test_phases(geometry, padding):
    geometry = dataclasses.replace(geometry, padding=padding)
    values = operands(geometry, "float64")
    single = operands(geometry)
    x, kernel, dy = values
    with tf.GradientTape() as tape:
        tape.watch([x, kernel])
        y = run(Direct(), geometry, FORWARD, *values)
    exact = y, *tape.gradient(y, [x, kernel], dy)
    for which, expected in zip(PASSES, exact, strict=True):
        for kind in ("direct", "winograd", "fft"):
            phases = algorithms.named(f"phases:{kind}", geometry)
            assert phases.refuses(geometry, which) is None
            assert phases.workspace(geometry, which) > 0
            result = run(phases, geometry, which, *values)
            assert error(result, expected) < 1e-12, (which, kind)
            result = run(phases, geometry, which, *single)
            assert error(result, expected) <= BOUNDS[kind], (which, kind)
        result = run(Direct(), geometry, which, *values)
        assert error(result, expected) < 1e-12, which


def test_what_has_no_phases():
    for geometry in (
        Geometry((8, 8), 3, 5, (3, 3)),
        Geometry((8, 8), 3, 5, (1, 1), strides=(2, 2)),
        Geometry((8, None), 3, 5, (3, 3), strides=(2, 2)),
    ):
        phases = algorithms.named("phases:winograd", geometry)
        assert all(phases.refuses(geometry, which) for which in PASSES)


def test_phases_of_an_unknown_batch_and_a_bias():
    geometry = Geometry((9, 9), 3, 5, (3, 3), dilation=(2, 2), padding="same")
    x, kernel, _ = operands(dataclasses.replace(geometry, batch=4))
    bias = Epilogue(bias=tf.range(5.0))
    phases = algorithms.named("phases:winograd", geometry)
    spec = tf.TensorSpec([None, 9, 9, 3])
    forward = tf.function(
        lambda x: phases.forward(x, kernel, geometry, bias),
        input_signature=[spec],
    )
    expected = Direct().forward(x, kernel, geometry, bias)
    np.testing.assert_allclose(forward(x), expected, rtol=1e-4, atol=1e-4)
    multiplications = phases.multiplications(geometry, FORWARD)
    assert multiplications < geometry.multiplications


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize("strides", [(2, 1), (3, 2)])
def test_gemm_with_strides(strides, padding):
    geometry = Geometry(
        (11, 12), 5, 7, (3, 2), strides=strides, padding=padding, batch=2
    )
    gemm = algorithms.named("gemm", geometry)
    assert gemm.refuses(geometry, INPUT_GRADIENT)
    values = operands(geometry, "float64")
    for which in (FORWARD, KERNEL_GRADIENT):
        assert gemm.refuses(geometry, which) is None
        expected = run(Direct(), geometry, which, *values)
        assert error(run(gemm, geometry, which, *values), expected) < 1e-14


def test_gemm_of_one_pixel_needs_no_workspace():
    geometry = Geometry((6, 6), 5, 7, (1, 1), batch=2)
    gemm = algorithms.named("gemm", geometry)
    values = operands(geometry)
    for which in PASSES:
        assert gemm.workspace(geometry, which) == 0
        expected = run(Direct(), geometry, which, *values)
        result = run(gemm, geometry, which, *values)
        assert error(result, tf.cast(expected, tf.float64)) < 1e-6


@pytest.mark.parametrize("name", ["gemm", "winograd", "fft"])
@pytest.mark.parametrize(
    "unfit",
    [{"strides": (2, 2)}, {"dilation": (2, 2)}, {"window": (1, 1)}],
    ids=["strides", "dilation", "one pixel"],
)
def test_what_is_refused_is_direct(name, unfit):
    geometry = dataclasses.replace(
        Geometry((9, 9), 3, 4, (3, 3), padding="same", batch=1), **unfit
    )
    x, kernel, _ = operands(geometry)
    y = convolve(
        x,
        kernel,
        Windows(geometry.strides, "same", geometry.dilation),
        algorithm=name,
    )
    expected = run(Direct(), geometry, FORWARD, x, kernel, None)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_reasons_of_refusal():
    geometry = Geometry((9, 9), 3, 4, (3, 3), batch=1)
    wide = dataclasses.replace(geometry, window=(9, 9))
    reasons = [
        Bilinear("winograd", (4,)).refuses(geometry, FORWARD),
        Bilinear("winograd", (4, 4)).refuses(wide, FORWARD),
        Bilinear("fft", (64, 64)).refuses(geometry, FORWARD),
    ]
    for reason in reasons:
        assert isinstance(reason, str) and reason.endswith(".")
    assert Bilinear("winograd", (4, 4)).refuses(geometry, FORWARD) is None


@pytest.mark.parametrize(
    "name", ["", "Winograd", "winograd:", "winograd:0", "gemm:4", "fft:x", 3]
)
def test_unknown_algorithm(name):
    x, kernel, _ = operands(Geometry((9, 9), 3, 4, (3, 3), batch=1))
    with pytest.raises(ValueError, match="Expected `algorithm`.*Received"):
        convolve(x, kernel, algorithm=name)


def test_names_tell_tiles():
    geometry = Geometry((9, 9), 3, 4, (3, 3), batch=1)
    for name in ("winograd:4", "fft:10x6", "gemm", "direct"):
        assert algorithms.named(name, geometry).name == name
    best = algorithms.named("winograd", geometry)
    assert algorithms.named(best.name, geometry) == best


def test_fewer_multiplications_than_direct():
    geometry = Geometry((28, 28), 256, 256, (3, 3), padding="same", batch=8)
    for which in PASSES:
        four = Bilinear("winograd", (4, 4)).multiplications(geometry, which)
        # 36 products for 144, and the transforms.
        assert 0.25 < four / geometry.multiplications < 0.3


def test_the_kernel_is_read_anew_where_it_is_remembered():
    geometry = Geometry((9, 9), 3, 4, (3, 3), batch=1)
    x, kernel, _ = operands(geometry)
    variable = tf.Variable(kernel)

    @tf.function
    def predict(x):
        kept = Epilogue(remember=True)
        return convolve(x, variable, epilogue=kept, algorithm="winograd:4")

    for factor in (1.0, 1.0, -3.0, 1.0):
        variable.assign(kernel * factor)
        expected = tf.nn.convolution(x, variable)
        np.testing.assert_allclose(predict(x), expected, 1e-4, 1e-4)
