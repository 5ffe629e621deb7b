"""How tensors get to other places, by channels and by samples."""

import collections
import dataclasses
import itertools

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from cases import every_second
from hypothesis import strategies as st

from tf_convpar.placement import Layout
from tf_convpar.placement import Move
from tf_convpar.placement import SampleLayout
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import ShardedTensorSpec
from tf_convpar.placement import arranged
from tf_convpar.placement import everywhere
from tf_convpar.placement import in_shards

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]
CHIEF = CPU[0]
# Numbers that bfloat16 rounds, and their slopes.
FINE = 1 + 2**-12
SHAPE = (7, 4, 5, 6)
PLACES = {
    "chief": None,
    "channels": Layout(CHIEF, (CPU[1], CPU[3], CPU[2]), (3, 1, 2)),
    "channels first": Layout(CHIEF, (CPU[0], CPU[2]), (3, 1), axis=-3),
    "samples": SampleLayout(CHIEF, (CPU[0], CPU[1], CPU[2]), (2, 1, 3)),
    "other samples": SampleLayout(CHIEF, (CPU[3], CPU[1]), (1, 6)),
    "samples, turned": SampleLayout(CHIEF, (CPU[2], CPU[1], CPU[0]), (2, 1, 3)),
}
PAIRS = list(itertools.product(PLACES, PLACES))


def whole(batch, dtype="float64"):
    shape = (batch, *SHAPE[1:])
    return np.arange(1, np.prod(shape) + 1, dtype=dtype).reshape(shape) * FINE


def pieces(x, place):
    """By numpy; where samples are cut is told by hand for these batches."""
    if isinstance(place, Layout):
        ends = np.cumsum(place.sizes)[:-1]
        return np.split(x, ends, place.axis)
    total, ends = sum(place.shares), np.cumsum(place.shares)[:-1]
    return np.split(x, [int(len(x) * end / total + 0.5) for end in ends])


def laid(x, place):
    if place is None:
        with tf.device(CHIEF):
            return tf.constant(x)
    shards = []
    for piece, device in zip(pieces(x, place), place.devices, strict=True):
        with tf.device(device):
            shards.append(tf.constant(piece))
    return ShardedTensor(shards, place)


def parts(x):
    """The shards, without samples that are made up to compute on."""
    return list(x.trimmed().shards) if isinstance(x, ShardedTensor) else [x]


def moved(x, place, wire=None):
    """As layers have it: shards, or the tensor on the chief."""
    if place is None:
        return x.joined() if isinstance(x, ShardedTensor) else x
    return in_shards(x, dataclasses.replace(place, wire=wire))


def sloped(x, place):
    """What lies elsewhere, and the gradient where it came from."""
    with tf.GradientTape() as tape:
        tape.watch(parts(x))
        y = moved(x, place)
        loss = tf.add_n([tf.reduce_sum(tf.sin(part)) for part in parts(y)])
    return parts(y), tape.gradient(loss, parts(x))


def any_batch(x):
    """The type of what lies so, of any number of samples."""
    if not isinstance(x, ShardedTensor):
        return tf.TensorSpec((None, *x.shape[1:]), x.dtype)
    specs = [tf.TensorSpec((None, *y.shape[1:]), y.dtype) for y in x.shards]
    return ShardedTensorSpec(specs, x.layout)


@pytest.mark.parametrize(("lies", "wanted"), every_second(PAIRS))
def test_from_every_place_to_every_other(lies, wanted):
    source, target = PLACES[lies], PLACES[wanted]
    traced = tf.function(
        lambda x: sloped(x, target),
        input_signature=[any_batch(laid(whole(7), source))],
    )
    # 2 and 1 are fewer than there are devices.
    for batch in (7, 2, 1):
        x = whole(batch)
        given = laid(x, source)
        expected = [x] if target is None else pieces(x, target)
        devices = [CHIEF] if target is None else list(target.devices)
        eagerly = sloped(given, target)
        for y, gradients in (eagerly, traced(given)):
            for part, piece in zip(y, expected, strict=True):
                np.testing.assert_array_equal(part, piece)
            for gradient, part in zip(gradients, parts(given), strict=True):
                if part.shape[0]:
                    slope = np.cos(np.asarray(part))
                    np.testing.assert_allclose(gradient, slope, rtol=1e-14)
        y, gradients = eagerly
        assert [part.device for part in y] == devices
        for gradient, part in zip(gradients, parts(given), strict=True):
            if lies != wanted and part.shape[0]:
                assert gradient.device == part.device


def rounded(x):
    return tf.cast(tf.cast(x, "bfloat16"), "float32").numpy()


@pytest.mark.parametrize("wanted", [k for k, v in PLACES.items() if v])
def test_what_travels_is_rounded_and_nothing_else(wanted):
    for lies in set(PLACES) - {wanted}:
        rounds_what_travels(PLACES[lies], PLACES[wanted])


def rounds_what_travels(source, target):
    x = whole(7, "float32")
    given = laid(x, source)
    y = moved(given, target, wire="bfloat16")
    assert y.dtype == tf.float32
    # Each number as its device has it already, or rounded.
    home = np.full(x.shape, CHIEF, object)
    if source is not None:
        for numbers, device in zip(
            pieces(np.arange(x.size).reshape(x.shape), source),
            source.devices,
            strict=True,
        ):
            home.ravel()[numbers.ravel()] = device
    for part, piece, homes, device in zip(
        y.shards,
        pieces(x, target),
        pieces(home, target),
        target.devices,
        strict=True,
    ):
        expected = np.where(homes == device, piece, rounded(piece))
        np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize("lies", PLACES)
@pytest.mark.parametrize("batch", [7, 1])
def test_all_of_it_on_every_device(lies, batch):
    source = PLACES[lies]
    x = whole(batch)
    given = laid(x, source)
    devices = (CPU[2], CPU[0], CPU[2], CPU[3])
    with tf.GradientTape() as tape:
        tape.watch(parts(given))
        copies = everywhere(given, devices, CHIEF)
        loss = tf.add_n(
            [tf.reduce_sum(copy) * 10**i for i, copy in enumerate(copies)]
        )
    assert [copy.device for copy in copies] == list(devices)
    for copy in copies:
        np.testing.assert_array_equal(copy, x)
    for gradient, part in zip(
        tape.gradient(loss, parts(given)), parts(given), strict=True
    ):
        if part.shape[0]:
            assert gradient.device == part.device
            np.testing.assert_array_equal(gradient, np.full_like(part, 1111))


def test_arranged_is_either():
    x = laid(whole(7, "float32"), PLACES["samples"])
    own = arranged(x, PLACES["channels"], CHIEF, "bfloat16")
    expected = moved(x, PLACES["channels"], "bfloat16")
    for a, b in zip(own, expected.shards, strict=True):
        np.testing.assert_array_equal(a, b)
    # What lies so already is not rounded.
    for a, b in zip(
        arranged(x, PLACES["samples"], CHIEF, "bfloat16"), x.shards, strict=True
    ):
        assert a is b
    copies = arranged(x, (CPU[1], CPU[2]), CHIEF, "float32")
    assert [copy.device for copy in copies] == [CPU[1], CPU[2]]
    assert np.array_equal(copies[0], whole(7, "float32"))
    (on_chief,) = arranged(x, None, CHIEF, "float32")
    assert on_chief.device == CHIEF


def test_integers_and_flags_are_not_rounded():
    for dtype in ("int32", "bool"):
        x = (np.arange(7 * 5) * 1001 % 3001).reshape(7, 5).astype(dtype)
        given = laid(x, PLACES["samples"])
        for place in ("other samples", "samples, turned"):
            y = moved(given, PLACES[place], "bfloat16")
            np.testing.assert_array_equal(y.joined(), x)


def owners(place, shape):
    """Of each number the devices that have it, or need it."""
    found = collections.defaultdict(set)
    numbers = np.arange(np.prod(shape)).reshape(shape)
    if place is None:
        found[CHIEF] = set(numbers.ravel())
    elif isinstance(place, tuple):
        for device in place:
            found[device] = set(numbers.ravel())
    else:
        for piece, device in zip(
            pieces(numbers, place), place.devices, strict=True
        ):
            found[device] |= set(piece.ravel())
    return found


TARGETS = PLACES | {"everywhere": (CPU[2], CPU[0], CPU[2])}


@pytest.mark.parametrize("wanted", TARGETS)
def test_moves_are_of_the_numbers_that_are_elsewhere(wanted):
    for source in PLACES.values():
        counts_what_is_elsewhere(source, TARGETS[wanted])


def counts_what_is_elsewhere(source, target):
    move = Move(SHAPE, source, target, CHIEF, width=2, returns=False)
    has, needs = owners(source, SHAPE), owners(target, SHAPE)
    expected = {
        (a, b): len(has[a] & needs[b])
        for a, b in itertools.product(has, needs)
        if a != b and has[a] & needs[b]
    }
    assert {k: n for k, n in move.numbers().items() if n} == expected
    assert {k: n for k, n in move.links().items() if n} == {
        k: 2 * n for k, n in expected.items()
    }
    both = dataclasses.replace(move, returns=True).links()
    for (a, b), n in both.items():
        there, back = expected.get((a, b), 0), expected.get((b, a), 0)
        assert n == 2 * (there + back)


@pytest.mark.parametrize("wanted", TARGETS)
@pytest.mark.parametrize("lies", PLACES)
def test_what_crosses_in_a_graph_is_what_moves(lies, wanted):
    """No number goes to a device twice, nor through another."""
    source, target = PLACES[lies], TARGETS[wanted]

    def run(x):
        if isinstance(target, tuple):
            return everywhere(x, target, CHIEF, "float64")
        return parts(moved(x, target))

    graph = tf.function(run).get_concrete_function(laid(whole(7), source)).graph
    homes = dict(
        zip(
            (x.name for x in graph.inputs),
            [CHIEF] if source is None else source.devices,
            strict=True,
        )
    )
    crossing = {}
    for op in graph.get_operations():
        for x in op.inputs:
            if op.type == "Identity" and not op.device:
                continue  # What leaves the function.
            begin = homes.get(x.name, x.device)
            if x.dtype == tf.float64 and begin != op.device and op.device:
                crossing[x.name, op.device] = begin, int(np.prod(x.shape))
    found = collections.Counter()
    for (_, end), (begin, n) in crossing.items():
        found[begin, end] += n
    move = Move(SHAPE, source, target, CHIEF)
    assert found == {k: n for k, n in move.numbers().items() if n}


def test_samples_where_there_are_as_many_as_shares():
    layout = SampleLayout(CHIEF, tuple(CPU[:3]), (3, 1, 4))
    assert layout.bounds(8) == [0, 3, 4, 8]
    assert layout.bounds(80) == [0, 30, 40, 80]
    assert layout.bounds(1) == [0, 0, 1, 1]
    assert layout.bounds(0) == [0, 0, 0, 0]


@hypothesis.settings(deadline=None)
@hypothesis.given(
    shares=st.lists(st.integers(1, 1000), min_size=1, max_size=4),
    batch=st.integers(0, 5000),
)
def test_samples_are_shared_out_in_proportion(shares, batch):
    layout = SampleLayout(CHIEF, tuple(CPU[: len(shares)]), tuple(shares))
    bounds = layout.bounds(batch)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, batch, len(shares) + 1)
    assert bounds == sorted(bounds)
    ends = itertools.accumulate(shares, initial=0)
    for bound, end in zip(bounds, ends, strict=True):
        assert abs(bound - batch * end / sum(shares)) <= 0.5
    known = layout.bounds(tf.constant(batch, tf.int64))
    assert [int(bound) for bound in known] == bounds
    assert layout.bounds(sum(shares))[1:] == list(itertools.accumulate(shares))


@pytest.mark.parametrize(
    ("devices", "shares"),
    [((CPU[0],), (1, 2)), ((), ()), ((CPU[0], CPU[1]), (2, 0))],
)
def test_layouts_of_nothing_are_refused(devices, shares):
    with pytest.raises(ValueError, match="Expected .*Received"):
        SampleLayout(CHIEF, devices, shares)
