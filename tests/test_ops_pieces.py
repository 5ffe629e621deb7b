"""Tensors as flat pieces, beside NumPy and the twin."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tf_convpar import ops

# Of three holders the second has none of the first tensor.
CUTS = ops.Cuts(
    shapes=[(3, 3, 2, 5), (5,), (), (2, 4, 3), (0, 4)],
    axes=[3, 0, 0, 1, 1],
    widths=[(2, 0, 3), (0, 5, 0), (1, 0, 0), (1, 2, 1), (2, 1, 1)],
)
# In eager mode, and in graphs.
WRONG = tf.errors.InvalidArgumentError, ValueError
NATIVE = [pytest.param(True, id="compiled"), pytest.param(False, id="twin")]


def tensors(dtype="float32"):
    rng = np.random.default_rng(0)
    return [tf.constant(rng.normal(size=s), dtype) for s in CUTS.shapes]


def rows():
    """The numbers of each holder, by NumPy."""
    found = [[], [], []]
    for x, axis, widths in zip(tensors(), CUTS.axes, CUTS.widths, strict=True):
        ends = list(itertools.accumulate(widths))[:-1]
        for row, part in zip(
            found, np.split(np.atleast_1d(x), ends, axis), strict=True
        ):
            row.append(part.ravel())
    return [np.concatenate(row) for row in found]


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("count", [1, 2, 7, 60])
def test_pieces_of_each_holder(count, native):
    pieces = ops.to_pieces(tensors(), CUTS, count, native=native)
    for own, row in zip(pieces, rows(), strict=True):
        np.testing.assert_array_equal(tf.concat(own, 0), row)
        sizes = [int(tf.size(piece)) for piece in own]
        assert len(sizes) == count and max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("graph", [True, False])
def test_the_same_tensors_again(dtype, native, graph):
    def there_and_back(*given):
        pieces = ops.to_pieces(given, CUTS, 3, native=native)
        shapes = [piece.shape for own in pieces for piece in own]
        found = ops.from_pieces(pieces, CUTS, native=native)
        return found, [shape.as_list() for shape in shapes]

    if graph:
        there_and_back = tf.function(there_and_back, autograph=False)
    given = tensors(dtype)
    found, shapes = there_and_back(*given)
    assert None not in itertools.chain(*shapes)
    for a, b in zip(found, given, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert bool(tf.reduce_all(a == b))


def test_pieces_of_integers():
    """There is no compiled op for them."""
    cuts = ops.Cuts.of_one([(2, 3)])
    pieces = ops.to_pieces([tf.reshape(tf.range(6), (2, 3))], cuts, 2)
    assert [piece.numpy().tolist() for piece in pieces[0]] == [
        [0, 1, 2],
        [3, 4, 5],
    ]
    (again,) = ops.from_pieces(pieces, cuts)
    assert again.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("graph", [True, False])
def test_gradients_of_any_order(native, graph):
    given = tensors("float64")
    times = [np.arange(1.0, row.size + 1) for row in rows()]

    def slopes(*given):
        with tf.GradientTape() as outer:
            outer.watch(given)
            with tf.GradientTape() as inner:
                inner.watch(given)
                pieces = ops.to_pieces(given, CUTS, 2, native=native)
                flat = [tf.concat(own, 0) for own in pieces]
                cubed = [[x**3 * t] for x, t in zip(flat, times, strict=True)]
                found = ops.from_pieces(cubed, CUTS, native=native)
                # One of the results is used by nothing.
                loss = tf.add_n(list(map(tf.reduce_sum, found[1:])))
            first = inner.gradient(loss, given)
        return first, outer.gradient(first, given)

    if graph:
        slopes = tf.function(slopes, autograph=False)
    first, second = slopes(*given)
    by = ops.from_pieces([[t] for t in times], CUTS, native=False)
    for i, (x, t, a, b) in enumerate(
        zip(given, by, first, second, strict=True)
    ):
        t = 0 * t if i == 0 else t
        np.testing.assert_allclose(a, 3 * x**2 * t, rtol=1e-12)
        np.testing.assert_allclose(b, 6 * x * t, rtol=1e-12)


@pytest.mark.skipif(not ops.load(), reason="no compiled ops")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"widths": [(2, 0, 2), *CUTS.widths[1:]]},
            "sum to .* axis 3",
        ),
        ({"axes": [4, 0, 0, 1, 1]}, "have the axis.*axis 4"),
        ({"axes": [3, 0, 0, 1]}, "the axes to be 5 integers"),
        ({"widths": [(-1, 3, 3), *CUTS.widths[1:]]}, "the widths to be 15"),
        ({"widths": [(5,), (5,)]}, "a width of each holder for each tensor"),
        ({"shapes": [(None, 3, 2, 5), *CUTS.shapes[1:]]}, "that are known"),
        ({"shapes": [(2**41, 3, 2, 5), *CUTS.shapes[1:]]}, "most 2.40 numbers"),
        ({"shapes": [(4, 3, 2, 5), *CUTS.shapes[1:]]}, "shapes in `shapes`"),
    ],
)
def test_what_does_not_go_together(change, words):
    cuts = ops.Cuts(**{**vars(CUTS), **change})
    with pytest.raises(WRONG, match=words):
        ops.to_pieces(tensors(), cuts, 2, native=True)


@pytest.mark.skipif(not ops.load(), reason="no compiled ops")
@pytest.mark.parametrize("count", [0, -1, 2**40])
def test_counts_of_pieces_that_there_cannot_be(count):
    with pytest.raises(WRONG):
        ops.module().tf_convpar_to_pieces(
            tensors=tensors(),
            N=6,
            count=count,
            shapes=CUTS.shapes,
            axes=CUTS.axes,
            widths=[w for of in CUTS.widths for w in of],
        )


@pytest.mark.skipif(not ops.load(), reason="no compiled ops")
def test_pieces_that_do_not_fit():
    pieces = ops.to_pieces(tensors(), CUTS, 2)
    pieces[1][0] = tf.zeros([1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="as many numbers"):
        ops.from_pieces(pieces, CUTS)
