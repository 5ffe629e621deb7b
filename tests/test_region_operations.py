"""Operations of `keras.ops` between the layers of a functional model."""

import keras
import numpy as np
import pytest
from cases import but_slow
from test_regions import branches
from test_regions import compare
from test_regions import conv
from test_regions import rule_of

import tf_convpar as convpar
from tf_convpar.sharding import step_traffic

ops = keras.ops


def after(operation):
    """A convolution, an operation, another convolution."""
    x = keras.Input((8, 8, 3))
    return keras.Model(x, conv(6)(operation(conv()(x))))


def arithmetic(pair):
    y, z = pair
    return ops.maximum(y + z, (y - z) * y)


def pointwise(x):
    x = ops.silu(1.0 - x * ops.relu6(x + 3.0) / 6.0)
    return ops.clip(ops.leaky_relu(x, 0.3), -0.5, 1.0)


TOGETHER = {
    "of two": lambda: branches(arithmetic),
    "of one": lambda: after(pointwise),
}
ON_SHARDS = {
    "a shortcut": lambda: branches(lambda pair: pair[0] + pair[1]),
    "a difference": lambda: branches(lambda pair: pair[0] - pair[1]),
    "a product": lambda: branches(lambda pair: pair[0] * pair[1]),
    "the larger": lambda: branches(lambda pair: ops.maximum(*pair)),
    "hard swish": lambda: after(lambda x: x * ops.relu6(x + 3.0) / 6.0),
    "number first": lambda: after(lambda x: 1.0 - x),
    "an activation": lambda: after(ops.silu),
    "with an argument": lambda: after(lambda x: ops.leaky_relu(x, 0.3)),
    "clipped": lambda: after(lambda x: ops.clip(x, -0.5, 1.0)),
}
JOINED = {
    "a number for each channel": lambda: after(
        lambda x: x * np.arange(12, dtype="float32")
    ),
    "other channels first": lambda: after(lambda x: ops.flip(x, axis=-1)),
    "softmax": lambda: after(lambda x: ops.softmax(x, axis=-1)),
    "the chief's": lambda: branches(
        lambda pair: pair[0] + ops.flip(pair[1], axis=-1)
    ),
}


def operations(model):
    return [
        operation
        for operation in model.operations
        if not isinstance(operation, keras.layers.Layer)
    ]


@pytest.mark.parametrize(
    "case",
    [
        *TOGETHER,
        *(pytest.param(case, marks=pytest.mark.slow) for case in ON_SHARDS),
    ],
)
def test_on_shards(case, strategy):
    parallel = compare((TOGETHER | ON_SHARDS)[case](), strategy)
    assert operations(parallel)
    assert all(rule_of(x) is not None for x in operations(parallel))
    # Between the convolutions nothing passes the chief.
    first, last = parallel.layers[1], parallel.layers[-1]
    assert first._in_region and last._in_region


@pytest.mark.parametrize("case", but_slow(JOINED, list(JOINED)[:2]))
def test_joined_first(case, strategy):
    parallel = compare(JOINED[case](), strategy)
    assert any(rule_of(x) is None for x in operations(parallel))


def test_a_shortcut_moves_nothing(strategy):
    """As many bytes as with a layer in its place."""
    with strategy.scope():
        by_operation, by_layer = (
            convpar.parallelize(branches(join))
            for join in (lambda pair: pair[0] + pair[1], keras.layers.Add())
        )
    found, expected = step_traffic(by_operation, 4), step_traffic(by_layer, 4)
    assert found.total == expected.total > 0


def test_there_and_back(strategy, tmp_path):
    model = ON_SHARDS["a shortcut"]()
    with strategy.scope():
        parallel = convpar.parallelize(model)
    merged = convpar.merge(parallel)
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("float32")
    np.testing.assert_array_equal(merged(x), model(x))
    parallel.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(x), model(x), atol=1e-6)
