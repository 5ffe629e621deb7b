"""Keras' own tests of convolutions, on layers that are cut in three.

Keras' wheel has them. They are loaded once more, with parallel layers where
they name Keras' own, and run in the scope of a strategy of three devices: what
such a layer has to do is then said by Keras, not by this project.
"""

import functools
import importlib.util
import types
import unittest
from unittest import mock

import keras.src
import pytest
from families import TWINS

pytestmark = pytest.mark.slow

MODULES = (
    "conv_test",
    "conv_transpose_test",
    "depthwise_conv_test",
    "separable_conv_test",
)
# They look at arguments, shapes and configs, and make no weights.
WITHOUT_WEIGHTS = (
    "test_bad_init_args",
    "test_conv_raises_exception_on_zero_dims",
    "test_conv_symbolic_invalid_configuration",
    "test_invalid_output_shape_raises",
    "test_output_padding_serialization",
)
LAYERS = types.SimpleNamespace(
    **vars(keras.src.layers)
    | {twin.__name__: kind for kind, twin in TWINS.items()}
)


def load(name):
    """Keras' module, and a second one of its code with parallel layers."""
    # Modules import helpers from each other: these stay Keras'.
    theirs = importlib.import_module(f"keras.src.layers.convolutional.{name}")
    ours = importlib.util.module_from_spec(theirs.__spec__)
    with mock.patch.object(keras.src, "layers", LAYERS):
        ours.__spec__.loader.exec_module(ours)
    return theirs, ours


def cases_of(module):
    return {
        name: kind
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, unittest.TestCase)
    }


def names(kind):
    return unittest.defaultTestLoader.getTestCaseNames(kind)


class CutInThree:
    """Mixed into Keras' test cases."""

    def setUp(self):
        super().setUp()
        # Not before: Keras' own makes a new graph, which knows of no scope.
        scope = self.strategy.scope()
        scope.__enter__()
        self.addCleanup(scope.__exit__, None, None, None)


def with_a_look_at_layers(name, method):
    """The test; then, whether layers were made, and are on three devices."""

    @functools.wraps(method)
    def run(self):
        method(self)
        assert (not self.made) == name.startswith(WITHOUT_WEIGHTS)
        for channels, devices in self.made:
            # One channel cannot be cut. Two leave a device without a shard.
            assert len(devices) == (min(channels, 3) if channels > 1 else 0)

    return run


def cut_in_three(kind):
    """A test case of Keras', with the strategy and with that look."""
    methods = {
        name: with_a_look_at_layers(name, getattr(kind, name))
        for name in names(kind)
    }
    return type(kind)(kind.__name__, (CutInThree, kind), methods)


LOADED = [load(name) for name in MODULES]
globals().update(
    {
        name: cut_in_three(kind)
        for _, ours in LOADED
        for name, kind in cases_of(ours).items()
    }
)


@pytest.fixture(autouse=True)
def made(request, strategy, monkeypatch):
    """Of each parallel layer: how many channels it gave to which devices."""
    found = []

    def record(build):
        @functools.wraps(build)
        def recorded(layer, *args, **kwargs):
            build(layer, *args, **kwargs)
            kernel = getattr(layer, "kernel", None)
            channels = getattr(layer, "filters", None) or kernel.shape[-2]
            shards = [getattr(w, "shards", ()) for w in layer.weights]
            found.append((channels, {s.device for s in sum(shards, ())}))

        return recorded

    for kind in TWINS:
        monkeypatch.setattr(kind, "build", record(kind.build))
    if request.instance is not None:
        request.instance.strategy = strategy
        request.instance.made = found
    return found


def test_all_of_keras_tests_are_here():
    count = 0
    for theirs, _ in LOADED:
        for name, kind in cases_of(theirs).items():
            assert names(globals()[name]) == names(kind)
            assert issubclass(globals()[name], CutInThree)
            count += len(names(kind))
    assert count > 250
