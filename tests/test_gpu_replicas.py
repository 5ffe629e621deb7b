"""Replicas on a GPU and a CPU, and on two logical GPUs; see gpus.py."""

import keras
import numpy as np
import pytest
import replica_cases
import tensorflow as tf

from tf_convpar import replicas

L = keras.layers
METHODS = {
    "SyncSGD": {},
    "SyncSGD int8": {"wire": "int8"},
    "SyncSGD auto": {"algorithm": "auto"},
    "SyncEASGD": {},
    "DownpourSGD": {},
    "DiLoCo": {"every": 3, "wire": "int8"},
}


def network():
    return replica_cases.network(
        keras.optimizers.SGD(0.02, momentum=0.9),
        extra=[L.BatchNormalization(), L.Dropout(0.1, seed=1)],
    )


def method_of(name, model, devices):
    kind = getattr(replicas, name.partition(" ")[0])
    return kind(model, devices=devices, **METHODS[name])


@pytest.mark.parametrize("data", ["arrays", "dataset"])
@pytest.mark.parametrize("name", METHODS)
def test_a_model_learns(devices, name, data):
    x, y = replica_cases.data(192)
    model = network()
    method = method_of(name, model, devices)
    if data == "arrays":
        method.fit(x, y, batch_size=16, epochs=12, verbose=0)
    else:
        batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
        method.fit(batches, epochs=12, verbose=0)
    assert [r.weights.value.device[-5:] for r in method.replicas] == devices
    assert model.evaluate(x, y, verbose=0)[1] > 0.95


def test_weights_are_those_of_cpus(devices, full_float32):
    x, y = replica_cases.data(192)

    def trained(on):
        model = replica_cases.network(keras.optimizers.SGD(0.05, momentum=0.9))
        method = replicas.SyncSGD(model, devices=on, shares=[3, 1])
        method.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
        return np.concatenate([w.ravel() for w in model.get_weights()])

    begin = np.concatenate(
        [w.ravel() for w in replica_cases.network().get_weights()]
    )
    expected = trained(["CPU:2", "CPU:3"])
    assert np.abs(expected - begin).max() > 0.05
    np.testing.assert_allclose(trained(devices), expected, atol=1e-4)
