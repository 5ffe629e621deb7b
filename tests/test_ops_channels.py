"""What normalization takes of feature maps: values, gradients and errors."""

import forks
import numpy as np
import pytest
import tensorflow as tf
from processes import environment

from tf_convpar import ops

# Channels: one, few that go several rows at a time, an odd number, many.
SHAPES = [(3, 5, 7, 1), (2, 9, 5, 6), (7, 13), (4, 3, 3, 100), (2, 3, 1030)]


@pytest.fixture(params=[True, False], ids=["native", "python"])
def native(request):
    if request.param and not ops.load():
        pytest.skip(ops.build_report().verdict)
    return request.param


def numbers(shape, seed=0, mean=0.0):
    return np.random.default_rng(seed).normal(mean, 1, shape).astype("float32")


def wide(*arrays):
    return [np.asarray(a, "float64") for a in arrays]


def near(actual, expected, tolerance=2e-6):
    expected = np.asarray(expected)
    error = np.abs(np.asarray(actual, "float64") - expected).max(initial=0)
    assert error <= tolerance * np.abs(expected).max(initial=1), error


@pytest.mark.parametrize("shape", SHAPES)
def test_values(shape, native):
    x, dy = numbers(shape, 1, mean=3), numbers(shape, 2)
    s, t, o = (numbers(shape[-1:], seed) for seed in (3, 4, 5))
    x64, dy64, s64, t64, o64 = wide(x, dy, s, t, o)
    axes = tuple(range(len(shape) - 1))
    moments = ops.channel_moments(x, native=native)
    near(moments, [x64.mean(axes), x64.var(axes)])
    sums = ops.channel_sums(dy, x, o, native=native)
    near(sums, [dy64.sum(axes), (dy64 * (x64 - o64)).sum(axes)], 1e-5)
    near(ops.scale_channels([x], [s], o, native=native), x64 * s64 + o64)
    both = ops.scale_channels([x, dy], [s, t], o, native=native)
    near(both, x64 * s64 + dy64 * t64 + o64)


def test_moments_of_a_large_mean_keep_their_digits(native):
    # Of squares that are subtracted from each other nothing would be left.
    x = numbers((16, 40, 40, 5), mean=1000)
    mean, variance = ops.channel_moments(x, native=native)
    (x64,) = wide(x)
    # TensorFlow adds up in float32.
    near(mean, x64.mean((0, 1, 2)), 1e-6 if native else 1e-5)
    near(variance, x64.var((0, 1, 2)), 1e-4)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_no_numbers(shape, native):
    x = tf.zeros(shape)
    nothing = tf.zeros(shape[-1:])
    assert not ops.channel_moments(x, native=native).numpy().any()
    assert not ops.channel_sums(x, x, nothing, native=native).numpy().any()
    y = ops.scale_channels([x, x], [nothing] * 2, nothing, native=native)
    assert y.shape == shape


@pytest.mark.parametrize("axis", [1, 2, -2])
def test_other_axes(axis):
    x = numbers((2, 5, 4, 3), mean=1)
    last = np.moveaxis(x, axis, -1)
    n = last.shape[-1]
    near(ops.channel_moments(x, axis), ops.channel_moments(last))
    s, o = numbers((n,), 1), numbers((n,), 2)
    near(ops.channel_sums(x, x, o, axis), ops.channel_sums(last, last, o))
    y = ops.scale_channels([x], [s], o, axis)
    near(np.moveaxis(y, axis, -1), ops.scale_channels([last], [s], o))


def derivatives(of, operands, native):
    """First and second ones, of something with both signs."""
    operands = [tf.constant(x) for x in operands]
    with tf.GradientTape() as outer:
        outer.watch(operands)
        with tf.GradientTape() as tape:
            tape.watch(operands)
            y = of(operands, native)
            loss = tf.reduce_sum(tf.sin(y) * y)
        first = tape.gradient(loss, operands)
        again = tf.add_n([tf.reduce_sum(tf.cos(g) * g) for g in first])
    return [*first, *outer.gradient(again, operands)]


OPS = {
    "moments": lambda x, native: ops.channel_moments(x[0], native=native),
    "sums": lambda x, native: ops.channel_sums(x[1], x[0], x[2], native=native),
    "scaled": lambda x, native: ops.scale_channels(
        [x[0]], [x[2]], x[3], native=native
    ),
    "both": lambda x, native: ops.scale_channels(
        [x[0], x[1]], [x[2], x[3]], x[4], native=native
    ),
}
USED = {"moments": [0], "sums": [0, 1, 2], "scaled": [0, 2, 3], "both": None}


@pytest.mark.parametrize("name", OPS)
def test_gradients_are_those_of_tensorflow_in_float64(name, native):
    shapes = [(3, 4, 6)] * 2 + [(6,)] * 3
    operands = [numbers(shape, i, 0.5) for i, shape in enumerate(shapes)]
    used = USED[name] or range(5)

    def of(given, native):
        by_index = dict(zip(used, given, strict=True))
        return OPS[name](by_index, native)

    own = [operands[i] for i in used]
    found = derivatives(of, own, native)
    expected = derivatives(of, wide(*own), False)
    for a, e in zip(found, expected, strict=True):
        near(a, e, 2e-4)


def test_what_is_scaled_stays_as_it_is(native):
    """Whatever else still reads it: the op may write where it reads."""

    @tf.function
    def run(x):
        a = x * 2.0
        s = tf.fill([4], 3.0)
        y = ops.scale_channels([a, x], [s, s], s, native=native)
        return a, y

    x = numbers((5, 4))
    a, y = run(x)
    near(a, 2 * x)
    near(y, 9 * x + 3)


PROGRAM = """
import sys, tensorflow as tf
from tf_convpar import ops
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
x = tf.random.stateless_normal([64, 30, 30, 48], [1, 2])
found = [ops.channel_moments(x), ops.channel_sums(x, x, x[0, 0, 0])]
print([n.hex() for x in found for n in tf.reshape(x, [-1]).numpy().tolist()])
"""


def check_that_threads_change_nothing(program):
    """A program prints the same, whatever number of threads it is given."""
    if not ops.load():
        pytest.skip(ops.build_report().verdict)
    found = {
        forks.run(["-c", program, threads], env=environment()).stdout
        for threads in ("1", "4")
    }
    assert len(found) == 1
    assert found != {""}


def test_threads_change_no_digit():
    check_that_threads_change_nothing(PROGRAM)


def test_what_does_not_fit():
    if not ops.load():
        pytest.skip(ops.build_report().verdict)
    x = tf.zeros([2, 3, 4])
    for run, words in (
        (lambda: ops.channel_sums(x, x, tf.zeros([3])), r"\[4\], a number"),
        (lambda: ops.channel_sums(x, x[:1], tf.zeros([4])), "one shape"),
        (lambda: ops.scale_channels([x], [x[0, 0]], x[0]), "offsets of shape"),
        (lambda: ops.channel_moments(tf.zeros([])), "last"),
    ):
        with pytest.raises((tf.errors.InvalidArgumentError, ValueError)) as e:
            run()
        assert e.match(words)
        assert e.match("Expected")
