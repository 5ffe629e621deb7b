"""Ops on statistics of channels, beside TensorFlow's ops and NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tf_convpar import ops

NAMES = [(), ("gamma",), ("beta",), ("gamma", "beta")]


def numbers(*shape, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape).astype("float32")


def moments_of(channels, seed):
    mean, variance = numbers(2, channels, seed=seed)
    return np.stack([mean, np.square(variance)])


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("native", [True, False])
def test_a_normalization_as_factors_and_summands(names, native):
    moments = moments_of(7, 2)
    weights = dict(zip(("gamma", "beta"), numbers(2, 7, seed=1), strict=True))
    given = {n: tf.constant(weights[n]) for n in names}
    values = [tf.constant(moments), *given.values()]
    times = numbers(7, seed=3)
    with tf.GradientTape() as tape:
        tape.watch(values)
        found = ops.affine(values[0], **given, epsilon=0.5, native=native)
        total = tf.reduce_sum(found[0] * times + tf.square(found[1]))
    scale = (moments[1] + 0.5) ** -0.5 * weights.get("gamma", 1)
    scale = scale if "gamma" in names else (moments[1] + 0.5) ** -0.5
    offset = -moments[0] * scale + (weights["beta"] if "beta" in names else 0)
    np.testing.assert_allclose(found[0], scale, rtol=1e-6)
    np.testing.assert_allclose(found[1], offset, rtol=1e-5, atol=1e-6)
    wide = [tf.cast(v, tf.float64) for v in values]
    with tf.GradientTape() as exact:
        exact.watch(wide)
        own = dict(zip(names, wide[1:], strict=True))
        s, o = ops.affine(wide[0], **own, epsilon=0.5)
        expected = tf.reduce_sum(s * times.astype("float64") + tf.square(o))
    for a, b in zip(
        tape.gradient(total, values),
        exact.gradient(expected, wide),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("gamma", [None, numbers(7, seed=5)])
@pytest.mark.parametrize("native", [True, False])
def test_the_gradient_of_a_normalization_is_that_of_a_tape(gamma, native):
    x, dy = numbers(12, 7, seed=6), numbers(12, 7, seed=7)
    wide = tf.constant(x.astype("float64"))
    weight = tf.constant(np.float64(np.ones(7) if gamma is None else gamma))
    with tf.GradientTape() as tape:
        tape.watch([wide, weight])
        mean, variance = tf.nn.moments(wide, [0])
        y = weight * (wide - mean) / tf.sqrt(variance + 0.01)
    by_x, by_weight = tape.gradient(y, [wide, weight], dy.astype("float64"))
    moments = ops.channel_moments(x)
    sums = ops.channel_sums(dy, x, moments[0])
    by_maps, by_all, by_gamma = ops.batch_normalization_gradient(
        *(sums, moments, gamma, tf.constant(1 / 12), 0.01), native=native
    )
    scale, _ = ops.affine(moments, gamma, None, 0.01)
    found = scale * dy + by_maps * x + by_all
    np.testing.assert_allclose(found, by_x, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(by_gamma, by_weight, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("native", [True, False])
def test_moments_of_all_are_merged_of_parts(native):
    # What sums of squares would lose.
    x = 1000 + numbers(20, 7)
    parts = [x[:3], x[3:12], x[12:]]
    rows = [ops.channel_moments(part) for part in parts]
    fractions = tf.constant([len(part) / 20 for part in parts])
    found = ops.merged_moments(fractions, rows, native=native)
    wide = x.astype("float64")
    np.testing.assert_allclose(found[0], wide.mean(0), rtol=1e-6)
    np.testing.assert_allclose(found[1], wide.var(0), rtol=1e-4)


@pytest.mark.parametrize("native", [True, False])
def test_moving_averages_are_those_of_keras(native):
    before, moments = numbers(2, 7), moments_of(7, 2)
    found = ops.moved_moments(
        list(map(tf.constant, before)), tf.constant(moments), 0.9, native=native
    )
    for old, new, row in zip(before, found, moments, strict=True):
        expected = tf.constant(old) * 0.9 + tf.constant(row) * (1.0 - 0.9)
        np.testing.assert_array_equal(new, expected)


@pytest.mark.parametrize("native", [True, False])
def test_moving_averages_are_no_part_of_a_loss(native):
    moments = tf.constant(moments_of(7, 2))
    with tf.GradientTape() as tape:
        tape.watch(moments)
        moved = ops.moved_moments(
            [moments[0], moments[1]], moments, 0.9, native=native
        )
        loss = tf.add_n(moved) + moments[0]
    by_mean, by_variance = tape.gradient(loss, moments)
    np.testing.assert_array_equal(by_mean, np.ones(7))
    np.testing.assert_array_equal(by_variance, np.zeros(7))


def test_moving_averages_keep_their_dtype():
    half = [tf.zeros(3, tf.float16), tf.ones(3, tf.float16)]
    found = ops.moved_moments(half, tf.ones([2, 3]), 0.5)
    assert [row.dtype for row in found] == [tf.float16] * 2
    np.testing.assert_array_equal(found[0], [0.5] * 3)


ROWS = tf.ones([2, 3])


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda n: ops.affine(ROWS, ROWS[0, :2], native=n), "gamma and beta"),
        (lambda n: ops.affine(ROWS[:1], native=n), "two rows"),
        (lambda n: ops.affine(tf.ones([3, 3]), native=n), "two rows"),
        (
            lambda n: ops.batch_normalization_gradient(
                ROWS[:, :2], ROWS, None, tf.constant(1.0), 0.1, native=n
            ),
            "two rows of sums",
        ),
        (
            lambda n: ops.batch_normalization_gradient(
                ROWS, ROWS, None, ROWS[0], 0.1, native=n
            ),
            "a scalar",
        ),
        (
            lambda n: ops.merged_moments(
                tf.ones([2]), [ROWS, ROWS[:, :1]], native=n
            ),
            "a fraction for each",
        ),
        (
            lambda n: ops.merged_moments(tf.ones([3]), [ROWS], native=n),
            "a fraction for each",
        ),
        (
            lambda n: ops.moved_moments(
                [ROWS[0]] * 2, ROWS[:, :2], 0.9, native=n
            ),
            "moving means",
        ),
    ],
)
def test_rows_must_fit(run, expected):
    with pytest.raises(tf.errors.InvalidArgumentError, match=expected):
        run(True)


@pytest.mark.parametrize("native", [True, False])
def test_who_gives_way_changes_nothing(native):
    rows = [tf.constant(moments_of(7, seed)) for seed in (1, 2)]
    scalar = tf.constant(0.25)
    found = [
        [
            ops.merged_moments(
                tf.constant([0.5, 0.5]), rows, give_way=give, native=native
            ),
            *ops.batch_normalization_gradient(
                *(rows[0], rows[1], None, scalar, 1e-3),
                give_way=give,
                native=native,
            ),
        ]
        for give in (False, True)
    ]
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)
