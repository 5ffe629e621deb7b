"""Replicas that are groups of devices, which split the model."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import slow
from replica_cases import data
from replica_cases import network

from tf_convpar import ConvParallel2D
from tf_convpar import ConvParallelStrategy
from tf_convpar import replicas

GROUPS = [["CPU:0", "CPU:1"], ["CPU:2", "CPU:3"]]
ALONE = ["CPU:0", "CPU:2"]
# Uneven, and for one layer by samples.
PLAN = {"conv2d": (3, 1), "wide": {"split": "samples", "shards": (1, 2)}}


def trained(kind, devices, extra=(), **arguments):
    """The weights and history of a model that was trained for two epochs."""
    x, y = data()
    # Layers draw their seeds when they are made.
    keras.utils.set_random_seed(2)
    extra = [make() for make in extra]
    model = network(
        extra=[keras.layers.Conv2D(6, 3, name="wide"), *extra],
        optimizer=keras.optimizers.SGD(0.02, momentum=0.5),
    )
    method = kind(model, devices=devices, **arguments)
    history = method.fit(x, y, batch_size=8, epochs=2, verbose=0)
    return method, model.get_weights(), history.history


def check_alike(kind, extra=(), **arguments):
    method, split, history = trained(
        kind, GROUPS, extra, plan=PLAN, **arguments
    )
    _, whole, expected = trained(kind, ALONE, extra, **arguments)
    for a, b in zip(split, whole, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)
    for name, values in expected.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-4)
    assert expected["loss"][-1] < 0.9 * expected["loss"][0]
    return method


@pytest.mark.parametrize("variant", [1, slow(3)])
def test_groups_learn_what_single_devices_do(variant):
    method = check_alike(replicas.SyncEASGD, variant=variant)
    for group, replica in zip(GROUPS, method.replicas, strict=True):
        for layer in replica.model.layers[:2]:
            shards = layer.kernel.value.shards
            assert [s.device[-5:] for s in shards] == group
        slots = replica.optimizer.variables[2].value.shards
        assert [s.device[-5:] for s in slots] == group


@pytest.mark.parametrize("algorithm", [None, slow("auto")])
def test_it_makes_no_difference_in_which_scope(algorithm):
    x, y = data()

    def learned():
        method = replicas.SyncSGD(
            network(), devices=ALONE, algorithm=algorithm, wire="int8"
        )
        method.fit(x, y, batch_size=8, epochs=1, verbose=0)
        assert method.evaluate(x, y, verbose=0) == method.model.evaluate(
            x, y, verbose=0
        )
        return method

    expected = learned().model.get_weights()
    strategy = ConvParallelStrategy(devices=["CPU:1", "CPU:0"])
    with strategy.scope():
        method = learned()
        assert tf.distribute.get_strategy() is strategy
        # It is still open: a layer is split as in any scope.
        layer = ConvParallel2D(4, 3)
        layer.build((None, 8, 8, 3))
    assert len(layer.kernel.value.shards) == 2
    assert [r.device[-5:] for r in method.replicas] == ALONE
    for a, b in zip(method.model.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "kind", [replicas.SyncSGD, slow(replicas.RoundRobinEASGD)]
)
def test_other_methods_with_groups(kind):
    check_alike(kind)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (replicas.SyncSGD, {}),
        slow((replicas.DiLoCo, {"every": 4, "shares": [2, 1], "fragments": 2})),
    ],
)
def test_replicas_on_one_device_with_algorithms(kind, options):
    extra = [keras.layers.BatchNormalization]
    method, own, history = trained(
        kind, ALONE, extra, algorithm="auto", **options
    )
    _, plain, expected = trained(kind, ALONE, extra, **options)
    for a, b in zip(own, plain, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-4)
    for device, replica in zip(ALONE, method.replicas, strict=True):
        layer = replica.model.layers[0]
        assert isinstance(layer, ConvParallel2D)
        assert layer.algorithm == "auto"
        assert layer.kernel.value.device.endswith(device)


def test_moving_averages_are_those_of_the_whole_batch():
    check_alike(replicas.SyncEASGD, [keras.layers.BatchNormalization])


@pytest.mark.slow
def test_random_layers_of_groups_differ():
    extra = [lambda: keras.layers.Dropout(0.5, seed=7)]
    method = check_alike(replicas.SyncEASGD, extra)
    seeds = [
        v.numpy()
        for r in method.replicas
        for v in r.model.non_trainable_variables
    ]
    assert (seeds[0] != seeds[1]).any()


def test_a_group_beside_a_single_device_learns():
    x, y = data()
    model = network()
    method = replicas.AsyncEASGD(model, devices=[GROUPS[0], "CPU:2"])
    before = model.evaluate(x, y, verbose=0)[0]
    method.fit(x, y, batch_size=8, epochs=4, verbose=0)
    assert {a.replica for a in method.arrivals} == {0, 1}
    assert model.evaluate(x, y, verbose=0)[0] < 0.8 * before


@pytest.mark.slow
def test_downpour_with_a_group_steps_alone_in_between():
    x, y = data()
    model = network()
    before = model.evaluate(x, y, verbose=0)[0]
    replicas.DownpourSGD(model, n_fetch=2, n_push=2, devices=GROUPS).fit(
        x, y, batch_size=8, epochs=4, verbose=0
    )
    assert model.evaluate(x, y, verbose=0)[0] < 0.9 * before


def test_loaded_weights_become_those_of_groups():
    x, y = data()
    model = network()
    method = replicas.SyncEASGD(model, devices=GROUPS)
    method.fit(x, y, batch_size=8, epochs=1, verbose=0)
    model.set_weights([np.zeros_like(w) for w in model.get_weights()])
    model.optimizer.learning_rate = 0.0
    method.fit(x, y, batch_size=8, epochs=1, verbose=0)
    for replica in method.replicas:
        assert not np.any(replica.weights.value)
        assert not any(np.any(w) for w in replica.model.get_weights())


@pytest.mark.slow
def test_shares_of_groups_are_measured():
    x, y = data()
    method = replicas.SyncSGD(
        network(), devices=[GROUPS[0], "CPU:2"], shares="auto"
    )
    method.fit(x, y, batch_size=32, epochs=1, verbose=0)
    # One that cannot pay is left out, and makes no other's batch larger.
    batches = [r.batch for r in method.replicas if r.batch]
    assert sum(batches) == 32 * len(batches)
    assert sum(method.shares) == pytest.approx(1, abs=0.01)


def test_a_device_of_two_groups_is_an_error():
    with pytest.raises(ValueError, match="Expected each device once"):
        replicas.SyncEASGD(network(), devices=[GROUPS[0], "CPU:1"])
