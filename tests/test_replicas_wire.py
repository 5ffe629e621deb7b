"""SyncSGD in few bits, beside NumPy and beside what travels whole."""

import keras
import numpy as np
import pytest
import replica_cases
import tensorflow as tf
from cases import but_slow
from cases import slow
from replica_cases import DEVICES
from replica_cases import rounded

from tf_convpar import replicas
from tf_convpar.placement import BLOCK
from tf_convpar.placement import exchange_messages
from tf_convpar.placement import wire_bytes

WIRES = ["bfloat16", "int8", "int4"]
# No multiple of a block. As float32 has it, since rates travel so.
SIZE, ETA = 3 * BLOCK + 41, float(np.float32(0.05))


def layers(optimizer=None):
    """Dense layers, each with a piece of its own, and a normalization."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            *(keras.layers.Dense(500, activation="relu") for _ in range(3)),
            keras.layers.Dense(2),
        ]
    )
    model.compile(
        optimizer or keras.optimizers.SGD(0.02, momentum=0.9),
        replica_cases.LOSS,
        metrics=["accuracy"],
    )
    return model


@pytest.mark.parametrize("wire", WIRES)
def test_as_numpy_has_it(wire):
    """Two replicas, each of which has a piece of the centre."""
    model = replica_cases.quadratic(SIZE, ETA, "float64")
    method = replicas.SyncSGD(model, wire=wire, devices=DEVICES[:2])
    x = np.random.default_rng(0).normal(size=(40, SIZE))
    method.fit(x, x, batch_size=4, epochs=1, shuffle=False, verbose=0)
    owners = [method.devices.index(d) for d in method.centre.devices]
    assert sorted(owners) == [0, 1]
    ends = np.cumsum(method.centre.sizes)
    centre, weights = np.ones(SIZE), np.ones(SIZE)
    left = np.zeros(SIZE, "float32")
    for first in range(0, 20, 4):
        # Of the first and the second half of the samples.
        gradients = [
            (weights - x[i : i + 4].mean(axis=0)) / 2
            for i in (first, first + 20)
        ]
        for owner, end, size in zip(
            owners, ends, method.centre.sizes, strict=True
        ):
            piece = slice(end - size, end)
            own, other = gradients[owner], gradients[1 - owner]
            sends = other[piece].astype("float32") + left[piece]
            arrives = rounded(sends, wire)
            left[piece] = sends - arrives
            centre[piece] -= ETA * (own[piece] + arrives)
            moves = (centre - weights)[piece].astype("float32")
            weights[piece] += rounded(moves, wire)
    assert np.abs(weights - 1).max() > 0.1
    assert np.abs(weights - centre).max() > 1e-6
    np.testing.assert_allclose(method.centre.value(), centre, rtol=1e-6)
    for replica in method.replicas:
        np.testing.assert_allclose(replica.weights.value, weights, rtol=1e-6)


def trained(wire, algorithm=None, epochs=3, **options):
    model = layers(**options)
    method = replicas.SyncSGD(
        model, wire=wire, devices=DEVICES, algorithm=algorithm
    )
    x, y = replica_cases.data(192)
    method.fit(x, y, batch_size=16, epochs=epochs, verbose=0)
    return method, model.evaluate(x, y, verbose=0)


@pytest.mark.parametrize(
    ("wire", "algorithm"),
    [slow(("bfloat16", None)), ("int8", "auto"), slow(("int4", None))],
)
def test_learns_what_it_learns_whole(wire, algorithm):
    whole, (loss, accuracy) = trained("float32", algorithm)
    method, (loss_of_few, accuracy_of_few) = trained(wire, algorithm)
    assert accuracy > 0.95 and loss < 0.3
    assert accuracy_of_few > accuracy - 0.02
    assert loss_of_few == pytest.approx(loss, rel=0.2)
    centre = np.asarray(method.centre.value())
    assert np.abs(centre - whole.centre.value()).max() > 0
    # All have the same, and next to the centre's.
    first, *others = (np.asarray(r.weights.value) for r in method.replicas)
    for weights in others:
        np.testing.assert_array_equal(weights, first)
    assert 0 < np.abs(first - centre).max() < 0.01


def test_another_optimizer_and_a_norm_of_all_weights():
    """One piece, with the first replica."""
    optimizer = keras.optimizers.Adam(1e-3, global_clipnorm=1.0)
    method, (_, accuracy) = trained("int8", optimizer=optimizer)
    assert len(method.centre.pieces) == 1
    assert accuracy > 0.95


def test_replicas_made_anew_begin_at_the_centre():
    """Whatever those have who were left when one was lost."""
    method, _ = trained("int4", epochs=1)
    lost = method.replicas[-1].weights
    lost.assign(lost.value + 1.0)
    assert np.abs(lost.value - method.centre.value()).max() > 0.9
    method._make_anew()
    for replica in method.replicas:
        np.testing.assert_array_equal(
            replica.weights.value, method.centre.value()
        )


def test_each_fit_repeats():
    """What rounding left of gradients at other weights is forgotten."""
    method, _ = trained("int4", epochs=1)
    weights = method.model.get_weights()
    x, y = replica_cases.data(192)
    losses = []
    for _ in range(2):
        method.model.set_weights([w * 0.5 for w in weights])
        for optimizer in method.centre.optimizers:
            for slot in optimizer.variables:
                slot.assign(tf.zeros(slot.shape, slot.dtype))
        history = method.fit(x, y, batch_size=16, epochs=2, verbose=0)
        losses.append(history.history["loss"])
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    "wire", but_slow(["float32", *WIRES], ["float32", "int4"])
)
def test_what_travels_is_as_large_as_is_said(wire):
    """By the graph: what an operation takes from another device."""
    method, _ = trained(wire, epochs=1)
    (function,) = method._engine._function._list_all_concrete_functions()
    seen = set()
    sent = dict.fromkeys(method.devices, 0)
    for op in function.graph.get_operations():
        for tensor in op.inputs:
            source, target = tensor.op.device, op.device
            crosses = (tensor.name, target)
            if source == target or not tensor.op.device or crosses in seen:
                continue
            if tensor.dtype == tf.resource or tensor.shape.rank != 1:
                continue  # Scalars, and metrics.
            seen.add(crosses)
            if source in sent and target in sent:
                sent[source] += tensor.shape[0] * tensor.dtype.size
    sizes = [wire_bytes(wire, n) for n in method.centre.sizes]
    legs = exchange_messages(method.devices, method.centre.devices, sizes)
    for device, nbytes in sent.items():
        expected = sum(
            n for leg in legs for (a, _), n in leg.items() if a == device
        )
        assert nbytes == pytest.approx(expected, rel=1e-3)


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match='wire to be "float32".*int2'):
        replicas.SyncSGD(layers(), wire="int2", devices=DEVICES)
