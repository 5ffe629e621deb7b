"""Models that commands are given: names, files, layers of one's own."""

import itertools
import re
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import but_slow
from click.testing import CliRunner
from processes import CONVPAR
from processes import run

from tf_convpar.cli import _models
from tf_convpar.cli.main import main
from tf_convpar.planner.measure import noise

L = keras.layers
OWN = """
import keras


class Scaled(keras.layers.Layer):
    def __init__(self, by, **kwargs):
        super().__init__(**kwargs)
        self.by = by

    def call(self, x):
        return doubled(x) * self.by

    def get_config(self):
        return super().get_config() | {"by": self.by}


def doubled(x):
    return 2 * x
"""
TAKE_A_MODEL = [
    ["algorithms", "{}"],
    ["calibrate", "{}"],
    ["calibrate", "--method=star", "{}"],
    ["estimate", "memory", "{}"],
    ["estimate", "batch", "{}", "--memory=1GiB"],
    ["simulate", "--model={}", "--devices=2xcpu:1GFLOPS"],
]


def convpar(*args):
    """Exit code and output, in this process, which has TensorFlow already."""
    done = CliRunner().invoke(main, list(map(str, args)))
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.output


def test_applications_are_those_of_keras():
    offered = {
        name
        for name in dir(keras.applications)
        if name[0].isupper() and callable(getattr(keras.applications, name))
    }
    assert set(_models.applications()) == offered


@pytest.mark.parametrize("command", TAKE_A_MODEL, ids=" ".join)
@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("Resnet5", "Is it ResNet50 or"),
        ("zzz", "These are ConvNeXtBase, "),
        ("away.keras", "away.keras, which is not there"),
    ],
)
def test_a_wrong_name_of_a_model(command, name, cure):
    code, said = convpar(*(word.format(name) for word in command))
    assert code == 2
    assert said.startswith("Error: ") and said.count("\n") == 1
    assert cure in said
    path = " ".join(command[: 2 if command[0] == "estimate" else 1])
    assert said.endswith(f"See: convpar {path} --help\n")


def test_it_is_told_before_tensorflow_is_imported():
    code, said = run(
        [sys.executable, "-X", "importtime", *CONVPAR[1:], "calibrate", "VGG"]
    )
    assert code == 2
    assert "Is it VGG19 or VGG16?" in said
    assert not re.search(r"\| +(tensorflow|keras)$", said, re.MULTILINE)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """One with a module of layers, and a model of them."""
    (tmp_path / "own_layers.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    space = {}
    exec(OWN, space)
    # As of the module, which this process has not imported.
    space["Scaled"].__module__ = space["doubled"].__module__ = "own_layers"
    x = keras.Input((8, 8, 3))
    y = L.Activation(space["doubled"])(L.Conv2D(4, 3)(x))
    keras.Model(x, space["Scaled"](2.0)(y)).save("own.keras")
    yield tmp_path
    sys.modules.pop("own_layers", None)


def test_layers_of_one_s_own(folder, monkeypatch):
    command = ["simulate", "--devices=2xcpu:1GFLOPS", "--model=own.keras"]
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    code, said = convpar(*command)
    assert code == 2
    assert "which is not of Keras" in said and "--import" in said
    code, said = convpar(*command, "--import", "own_layers")
    assert code == 0, said
    assert "conv2d" in said
    # Of another model that the same process loads, nothing is left.
    code, said = convpar("estimate", "memory", "own.keras", "--import=own_lay")
    assert code == 2
    assert "Received: own_lay." in said
    code, said = convpar(
        "estimate", "memory", "own.keras", "--import=own_layers"
    )
    assert code == 0, said


@pytest.mark.parametrize(
    ("module", "cure"),
    [
        ("./own_layers.py", "Is it own_layers?"),
        ("nowhere.layers", "Received: nowhere.layers."),
    ],
)
def test_a_module_that_is_not_there(folder, module, cure):
    code, said = convpar("calibrate", "own.keras", "--import", module)
    assert (code, said.count("\n")) == (2, 1)
    assert cure in said


def test_a_file_that_is_none_of_keras(tmp_path):
    (tmp_path / "half.keras").write_bytes(b"PK\x03\x04")
    code, said = convpar("estimate", "memory", tmp_path / "half.keras")
    assert (code, said.count("\n")) == (2, 1)
    assert "Expected" in said and "file of model.save()" in said


def inputs(kind):
    image, words = keras.Input((8, 8, 3)), keras.Input((5,), dtype="int32")
    x = L.GlobalMaxPooling2D()(L.Conv2D(4, 3)(image))
    y = L.Flatten()(L.Embedding(10, 4)(words))
    outputs = L.Dense(2)(L.Concatenate()([x, y]))
    given = {
        "list": [image, words],
        "mapping": {"image": image, "words": words},
    }[kind]
    model = keras.Model(given, outputs)
    model.compile("sgd", "mse", jit_compile=False)
    return model


@pytest.mark.parametrize("kind", ["list", "mapping"])
def test_noise_for_models_of_two_inputs(kind):
    model = inputs(kind)
    x = noise(model, 4)
    data = tf.data.Dataset.from_tensors((x, np.zeros((4, 2))))
    model.fit(data, verbose=0)
    assert [tuple(t.shape) for t in keras.tree.flatten(x)] == [
        (4, 8, 8, 3),
        (4, 5),
    ]


@pytest.mark.parametrize(
    ("kind", "method"),
    but_slow(
        itertools.product(["list", "mapping"], ["model", "star"]),
        [("mapping", "model")],
    ),
)
def test_models_of_two_inputs_are_measured(
    kind, method, tmp_path, little_time, monkeypatch
):
    monkeypatch.setenv("TF_CONVPAR_CACHE", str(tmp_path))
    inputs(kind).save(tmp_path / "two.keras")
    code, said = convpar(
        *("calibrate", tmp_path / "two.keras", "--batch=4"),
        f"--method={method}",
    )
    assert code == 0, said
    assert "conv2d" in said
