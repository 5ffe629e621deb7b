"""`keras.saving` does for parallel models what their methods do.

And what this package wraps does nothing to models without parallel layers.
"""

import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import but_slow
from models import small_cnn
from models import train

import tf_convpar as convpar
from tf_convpar import layers
from tf_convpar.layers import _files
from tf_convpar.layers import is_merged


def make(parallel=True):
    with convpar.ConvParallelStrategy(
        devices=["CPU:0", "CPU:1", "CPU:2"]
    ).scope():
        return small_cnn(parallel, "adam")


# How a model may be written, and to what file.
WAYS = {
    "save": ("m.keras", lambda m, path: m.save(path)),
    "saving": ("m.keras", keras.saving.save_model),
    "models": ("m.keras", keras.models.save_model),
    "tf.keras": (
        "m.keras",
        lambda m, path: tf.keras.models.save_model(m, path),
    ),
    "by name": (
        "m.keras",
        lambda m, path: keras.saving.save_model(filepath=path, model=m),
    ),
    "legacy": ("m.h5", keras.saving.save_model),
    "legacy hdf5": ("m.hdf5", keras.models.save_model),
    "save, legacy": ("m.h5", lambda m, path: m.save(path)),
    "weights": ("m.weights.h5", lambda m, path: m.save_weights(path)),
    "saving weights": ("m.weights.h5", keras.saving.save_weights),
}


@pytest.mark.parametrize(
    "way", but_slow(WAYS, ["save", "models", "legacy", "weights"])
)
def test_files_are_saved_atomically(way, images, tmp_path):
    name, save = WAYS[way]
    path = tmp_path / name
    model = make()
    train(model, images, epochs=1)
    save(model, path)
    plain = make(parallel=False)
    plain.load_weights(path)
    for a, b in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    before = path.read_bytes()
    # A worker is lost.
    kernel = model.layers[0].kernel
    shards = kernel._value.shards

    class Lost:
        def __getattr__(self, name):
            raise tf.errors.UnavailableError(None, None, "worker is gone")

    kernel._value.shards = (*shards[:2], Lost())
    with pytest.raises(tf.errors.UnavailableError):
        save(model, path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [name]
    kernel._value.shards = shards
    save(model, path)
    assert model.layers[0].is_sharded


@pytest.mark.parametrize("save", [w for w in WAYS if "weights" not in w])
def test_a_full_disk_leaves_the_old_file(save, tmp_path):
    """Keras itself opens the file before it knows what it will write."""
    name, write = WAYS[save]
    path = tmp_path / name
    model = make()
    write(model, path)
    before = path.read_bytes()

    class Full(keras.layers.Layer):
        def get_config(self):
            raise OSError("No space left on device")

        def call(self, x):
            return x

    model.add(Full())
    with pytest.raises(OSError, match="No space left"):
        write(model, path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [name]


def test_keras_own_names_are_one_function():
    for module in (keras.models, tf.keras.models):
        assert module.save_model is keras.saving.save_model
    # It is wrapped once.
    inner = keras.saving.save_model.__wrapped__
    assert not hasattr(inner, "__wrapped__")


def test_a_function_that_was_imported_earlier_writes_the_same(tmp_path):
    model = make()
    before = keras.saving.save_model.__wrapped__
    before(model, tmp_path / "before.keras")
    plain = make(parallel=False)
    plain.load_weights(tmp_path / "before.keras")
    for a, b in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_weights_in_several_files(tmp_path):
    model = make()
    for path in (tmp_path / "m.weights.json", tmp_path / "n.weights.h5"):
        model.save_weights(path, max_shard_size=2.5e-5)
    assert len(list(tmp_path.glob("m_*.weights.h5"))) > 1
    plain = make(parallel=False)
    for name in ("m", "n"):
        plain.set_weights([np.zeros_like(w) for w in plain.get_weights()])
        plain.load_weights(tmp_path / f"{name}.weights.json")
        for a, b in zip(plain.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["m", "m.h5"])
def test_a_folder(name, tmp_path):
    """Keras does not write into one a second time."""
    model = make()
    model.save(tmp_path / name, zipped=False)
    plain = make(parallel=False)
    plain.load_weights(tmp_path / name / "model.weights.h5")
    for a, b in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_existing_file_is_asked_about(monkeypatch, tmp_path):
    model = make()
    path = tmp_path / "m.keras"
    path.write_text("something")
    monkeypatch.setattr("builtins.input", lambda _: "n")
    keras.saving.save_model(model, path, overwrite=False)
    assert path.read_text() == "something"
    monkeypatch.setattr("builtins.input", lambda _: "y")
    keras.saving.save_model(model, path, False)
    assert path.read_bytes()[:2] == b"PK"


def test_what_is_no_model_gets_keras_own_complaint(tmp_path):
    with pytest.raises(Exception) as ours:
        keras.saving.save_model("no model", tmp_path / "m.keras")
    with pytest.raises(Exception) as theirs:
        keras.saving.save_model.__wrapped__("no model", tmp_path / "m.keras")
    assert type(ours.value) is type(theirs.value)
    assert str(ours.value) == str(theirs.value)


# Models without parallel layers.


@pytest.fixture
def trapped(monkeypatch):
    """What is done to parallel models fails."""

    class Trap(Exception):
        pass

    def fail(*args, **kwargs):
        raise Trap

    monkeypatch.setattr("tf_convpar.layers._files._merged_model", fail)
    monkeypatch.setattr("tf_convpar.layers._files._local_file", fail)
    return Trap


EXPORT = {"export": ("folder", lambda m, p: m.export(p, verbose=False))}


@pytest.mark.parametrize("way", WAYS | EXPORT)
def test_other_models_go_straight_to_keras(way, trapped, tmp_path):
    name, write = (WAYS | EXPORT)[way]
    write(make(parallel=False), tmp_path / name)
    assert os.listdir(tmp_path) == [name]
    with pytest.raises(trapped):
        write(make(), tmp_path / name)


def test_other_models_arguments_reach_keras_as_they_are():
    given = []

    def keras_own(model, filepath, overwrite=True, zipped=None, **kwargs):
        """Its signature only; what it is called with is noted below."""

    def noted(*args, **kwargs):
        given.append((args, kwargs, is_merged()))
        return "its result"

    noted.__signature__ = _files.inspect.signature(keras_own)
    save = _files._saved_atomically(noted)
    plain, own = make(parallel=False), object()
    assert save(plain, own, zipped=own, more=own) == "its result"
    assert save(own, own, own) == "its result"
    assert given == [
        ((plain, own), {"zipped": own, "more": own}, False),
        ((own, own, own), {}, False),
    ]
    given.clear()
    save(make(), "gs://somewhere/m.keras", more=own)
    ((_, path, overwrite, zipped), others, merged) = given[0]
    assert (path, overwrite, zipped) == ("gs://somewhere/m.keras", True, None)
    assert others == {"more": own} and merged


@pytest.mark.parametrize(
    ("make_model", "expected"),
    [
        # The save that it ends in does not know whose functions it traces.
        (lambda: make(parallel=False), {False, True}),
        (make, {True}),
        # Nothing is cut, but an algorithm would be traced.
        (
            lambda: keras.Sequential(
                [
                    keras.Input((8, 8, 3)),
                    convpar.ConvParallel2D(4, 3, algorithm="winograd"),
                ]
            ),
            {True},
        ),
    ],
)
def test_layers_are_plain_in_exports_of_parallel_models(
    make_model, expected, tmp_path
):
    seen = []

    class Listening(keras.layers.Layer):
        def call(self, x):
            seen.append(is_merged())
            return x

    model = make_model()
    model.add(Listening())
    seen.clear()
    model.export(tmp_path / "served", verbose=False)
    assert set(seen) == expected


def test_parts_of_a_region_alone_are_no_plain_model():
    """A layer whose weights are cut, and one that would cut its input."""
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Rescaling(2.0, name="first")(inputs)
    x = keras.layers.Conv2D(6, 3)(x)
    x = keras.layers.BatchNormalization(name="norm")(x)
    x = keras.layers.Conv2D(6, 3)(x)
    plain = keras.Model(inputs, x)
    strategy = convpar.ConvParallelStrategy(devices=["CPU:0", "CPU:1"])
    for split, name in (("filters", "norm"), ("samples", "first")):
        with strategy.scope():
            model = convpar.parallelize(plain, {".*": split_of(split)})
        layer = model.get_layer(name)
        assert layers.is_parallel(keras.Model(layer.input, layer.output))
    layer = plain.get_layer("norm")
    assert not layers.is_parallel(keras.Model(layer.input, layer.output))


def split_of(by):
    return {"split": by, "shards": (2, 1)}


def test_summaries_of_other_models_are_keras_own(capsys):
    plain = make(parallel=False)
    lines = []
    plain.summary(print_fn=lambda line, **kwargs: lines.append(line))
    theirs = []
    keras.Model.summary.__wrapped__(
        plain, print_fn=lambda line, **kwargs: theirs.append(line)
    )
    assert lines == theirs
    lines.clear()
    make().summary(print_fn=lambda line, **kwargs: lines.append(line))
    assert "Kernels of each device" in "".join(map(str, lines))
