"""Weights that travel in the order in which they are needed."""

import numpy as np
import pytest
import tensorflow as tf

from tf_convpar.placement import Layout
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import everywhere_in_turn

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(2)]
LAYOUT = Layout(CPU[0], tuple(CPU), (2, 2))
# Four numbers make a row: of these as many as half a megabyte has, and one.
HALF, LITTLE = (1 << 19) // 16, 1


def laid(rows, value):
    shards = []
    for device in CPU:
        with tf.device(device):
            shards.append(tf.fill([rows, 2], value))
    return ShardedTensor(shards, LAYOUT)


def gathered(rows, sharded):
    """Weights with so many rows, one after the other; on each device."""
    found = []
    for i, n in enumerate(rows):
        if sharded:
            x = laid(n, float(i))
        else:
            with tf.device(CPU[0]):
                x = tf.fill([n, 4], float(i))
        found.append(everywhere_in_turn(x, CPU, CPU[0]))
    return found


def waits(rows, sharded):
    """Of each weight, before which others it must not be sent."""
    with tf.Graph().as_default():
        found = gathered(rows, sharded)
        names = {copy.op.name: i for i, own in enumerate(found) for copy in own}
        waiting = [set() for _ in rows]
        for i, own in enumerate(found):
            todo, seen = [copy.op for copy in own], set()
            while todo:
                op = todo.pop()
                if op.name in seen:
                    continue
                seen.add(op.name)
                waiting[i] |= {names[c.name] for c in op.control_inputs}
                # The control inputs of what it is made of, no further.
                todo += [x.op for x in op.inputs]
    return waiting


@pytest.mark.parametrize("sharded", [True, False])
def test_no_more_than_a_megabyte_is_on_its_way(sharded):
    # The first two may go at once; the fifth waits for the third, and so on.
    assert waits([HALF] * 6, sharded) == [set(), set(), set(), {0}, {1}, {2}]


@pytest.mark.parametrize("sharded", [True, False])
def test_small_ones_wait_for_nobody(sharded):
    assert waits([LITTLE] * 9, sharded) == [set()] * 9


def test_each_device_waits_for_what_it_got_itself():
    with tf.Graph().as_default() as graph:
        gathered([HALF] * 5, sharded=True)
        pairs = [
            (op.device, before.device)
            for op in graph.get_operations()
            for before in op.control_inputs
        ]
    assert {a for a, _ in pairs} == set(CPU)
    assert all(a == b for a, b in pairs)


@pytest.mark.parametrize("traced", [True, False])
def test_they_arrive_whole(traced):
    run = tf.function(gathered, autograph=False) if traced else gathered
    for i, own in enumerate(run([HALF, HALF, LITTLE, HALF, HALF], True)):
        for copy, device in zip(own, CPU, strict=True):
            assert copy.device == device or traced
            rows = LITTLE if i == 2 else HALF
            np.testing.assert_array_equal(copy, np.full((rows, 4), float(i)))


def test_another_trace_has_an_order_of_its_own():
    """What was traced before is of no graph of this one."""
    first = tf.function(gathered, autograph=False)
    second = tf.function(lambda: gathered([HALF] * 4, True), autograph=False)
    first([HALF] * 4, True)
    assert len(second()) == 4
