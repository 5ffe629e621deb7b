"""How weights are cut into pieces that travel while others are computed."""

import itertools

import hypothesis
import keras
import numpy as np
import pytest
import replica_cases
import tensorflow as tf
from graphs_that_ran import nodes_by_device
from hypothesis import strategies as st

from tf_convpar import replicas
from tf_convpar.placement import gradient_pieces
from tf_convpar.replicas.packed import Packing

SIZES = st.lists(st.integers(1, 10**6), min_size=1, max_size=60)


@hypothesis.settings(deadline=None)
@hypothesis.given(SIZES, st.integers(1, 8))
def test_each_device_has_about_as_much(sizes, count):
    devices = [f"device {i}" for i in range(count)]
    lengths, owners = gradient_pieces(sizes, 4, devices)
    assert sum(lengths) == sum(sizes)
    assert owners[0] == devices[0]
    whole = sum(sizes)
    if whole >= count:
        assert set(owners) == set(devices)
    most = max(
        sum(n for n, o in zip(lengths, owners, strict=True) if o == device)
        for device in devices
    )
    # The last one given is what somebody may have too much.
    assert most <= -(-whole // count) + max(lengths)


def test_a_large_variable_is_a_piece_and_small_ones_share_one():
    million = 10**6
    sizes = [500, 600, 3 * million, 700, 2 * million, 100]
    lengths, owners = gradient_pieces(sizes, 4, ["a", "b"])
    ends = list(itertools.accumulate(lengths))
    assert lengths[0] == 1100
    assert {1100, 1100 + 3 * million, sum(sizes) - 100} <= set(ends)
    # In the order in which gradients come, from the end, both have work.
    assert {owners[-1], owners[-2]} == {"a", "b"}


@hypothesis.settings(deadline=None, max_examples=30)
@hypothesis.given(st.data())
def test_pieces_hold_the_values_of_the_vector(data):
    shapes = data.draw(
        st.lists(
            st.lists(st.integers(1, 4), min_size=0, max_size=3),
            min_size=1,
            max_size=6,
        )
    )
    variables = [
        keras.Variable(
            np.random.default_rng(i).normal(size=shape).astype("float32")
        )
        for i, shape in enumerate(shapes)
    ]
    packing = Packing(variables, "float32")
    cuts = data.draw(st.lists(st.integers(0, packing.size), max_size=5))
    sizes = np.diff([0, *sorted(cuts), packing.size]).tolist()
    values = [v.value for v in variables]
    pieces = packing.pieces(values, sizes)
    assert [int(p.shape[0]) for p in pieces] == sizes
    vector = packing.pack(values)
    np.testing.assert_array_equal(tf.concat(pieces, 0), vector)
    back = packing.of_pieces(pieces, sizes)
    for value, variable in zip(back, variables, strict=True):
        np.testing.assert_array_equal(value, variable.numpy())


def deep():
    """Four layers, each of which fills a piece of its own.

    They are smooth: where a ReLU begins, a last bit decides on a gradient.
    """
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten()])
    for _ in range(4):
        model.add(keras.layers.Dense(600, activation="tanh"))
    model.add(keras.layers.Dense(2))
    model.compile(keras.optimizers.SGD(0.05), replica_cases.LOSS)
    return model


@pytest.mark.parametrize("algorithm", [None, "auto"])
def test_a_piece_waits_for_its_own_gradients_only(algorithm):
    """Those of the last layers travel before those of the first are there."""
    method = replicas.SyncSGD(
        deep(), devices=replica_cases.DEVICES[:2], algorithm=algorithm
    )
    x, y = replica_cases.data(64)
    ran = nodes_by_device(lambda: method.fit(x, y, batch_size=16, verbose=0))
    nodes = {n.name: n for own in ran.values() for n in own}
    needs = sorted(
        products_before(node, nodes)
        for node in nodes.values()
        if node.op == "ResourceApplyGradientDescent"
    )
    assert len(needs) == len(method.centre.pieces) > 4
    # One more matrix for each layer further down, of each of two replicas.
    assert needs[0] < needs[len(needs) // 2] < needs[-1]


def products_before(node, nodes):
    """How many products of matrices must be made before a node runs."""
    sent = {
        n.attr["tensor_name"].s: n for n in nodes.values() if n.op == "_Send"
    }
    seen, left = {node.name}, [node]
    while left:
        now = left.pop()
        before = [
            nodes[name.lstrip("^").partition(":")[0]] for name in now.input
        ]
        if now.op == "_Recv":
            before.append(sent[now.attr["tensor_name"].s])
        left += [n for n in before if n.name not in seen]
        seen |= {n.name for n in before}
    return sum("MatMul" in nodes[name].op for name in seen)


def test_pieces_do_not_change_what_is_learned():
    x, y = replica_cases.data(63)
    whole = deep()
    before = whole.get_weights()
    whole.fit(x, y, batch_size=63, epochs=3, verbose=0)
    model = deep()
    method = replicas.SyncSGD(model, devices=replica_cases.DEVICES)
    method.fit(x, y, batch_size=21, epochs=3, verbose=0)
    for old, ours, exact in zip(
        before, model.get_weights(), whole.get_weights(), strict=True
    ):
        assert np.abs(old - exact).max() > 1e-4
        np.testing.assert_allclose(ours, exact, rtol=1e-5, atol=2e-7)
