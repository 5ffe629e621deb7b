"""Replicas whose steps XLA compiles, as Keras lets it compile its own."""

import keras
import numpy as np
import pytest
import replica_cases
from cases import slow
from replica_cases import DEVICES

from tf_convpar import replicas
from tf_convpar.replicas import replica

L = keras.layers
# As `fit` of a GPU's replica has it, here on a CPU.
COMPILED, AS_IT_IS = True, False


def network(jit_compile):
    """With moving averages, a random layer and a metric."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            L.Conv2D(4, 3, activation="relu"),
            L.BatchNormalization(),
            L.Flatten(),
            # XLA has other random numbers; of these next to nothing depends.
            L.GaussianNoise(1e-6, seed=3),
            L.Dense(2),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.02, momentum=0.9),
        replica_cases.LOSS,
        metrics=["accuracy"],
        jit_compile=jit_compile,
    )
    return model


def trained(method, jit_compile, **options):
    model = network(jit_compile)
    engine = getattr(replicas, method)(model, devices=DEVICES, **options)
    x, y = replica_cases.data(96)
    history = engine.fit(x, y, batch_size=8, epochs=2, verbose=0).history
    return engine, history


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("SyncSGD", {}),
        slow(("SyncSGD", {"wire": "int8"})),
        slow(("RoundRobinEASGD", {})),
    ],
)
def test_xla_learns_the_same(method, options):
    engine, history = trained(method, COMPILED, **options)
    plain, expected = trained(method, AS_IT_IS, **options)
    assert expected["loss"][-1] < 0.9 * expected["loss"][0]
    for name, values in expected.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-3)
    for one, other in zip(engine.replicas, plain.replicas, strict=True):
        np.testing.assert_allclose(
            one.weights.value, other.weights.value, atol=1e-4
        )
        np.testing.assert_allclose(one.kept, other.kept, atol=1e-4)
        for state, expected_state in zip(one.inner, other.inner, strict=True):
            np.testing.assert_allclose(state, expected_state, atol=1e-3)


@pytest.mark.parametrize("jit_compile", [COMPILED, AS_IT_IS])
def test_what_xla_compiles_is_the_gradient_alone(jit_compile):
    """What is sent between devices cannot be in what XLA compiles."""
    engine, _ = trained("SyncSGD", jit_compile)
    (function,) = engine._engine._function._list_all_concrete_functions()
    compiled = [
        op
        for op in function.graph.get_operations()
        if op.type.endswith("PartitionedCall")
        and op.node_def.attr["_XlaMustCompile"].b
    ]
    assert len(compiled) == (len(DEVICES) if jit_compile else 0)
    for op, device in zip(compiled, DEVICES, strict=False):
        assert op.device.endswith(device)


def test_by_itself_xla_is_for_gpus():
    cpu = "/job:worker/replica:0/task:1/device:CPU:0"
    gpu = cpu.replace("CPU", "GPU")
    model = network("auto")
    assert replica._is_for_xla(model, gpu)
    assert not replica._is_for_xla(model, cpu)
    model.layers[0].supports_jit = False
    assert not replica._is_for_xla(model, gpu)
    # What the user asks for is so everywhere.
    assert replica._is_for_xla(network(COMPILED), cpu)
