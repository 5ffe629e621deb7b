"""Files hold merged kernels: written on three devices, read on any number."""

import itertools
import os
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import but_slow
from models import small_cnn
from models import train
from processes import ROOT

import tf_convpar as convpar


def make(devices, optimizer="adam", **kwargs):
    """A small network over so many devices; 0 for plain Keras."""
    if not devices:
        return small_cnn(False, optimizer, **kwargs)
    names = [f"CPU:{i}" for i in range(devices)]
    with convpar.ConvParallelStrategy(devices=names).scope():
        return small_cnn(True, optimizer, **kwargs)


@pytest.fixture(scope="module")
def source(images, tmp_path_factory):
    """Of a model trained on three devices: files, values, later losses."""
    keras.utils.clear_session()
    folder = tmp_path_factory.mktemp("source")
    model = make(3)
    train(model, images)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    checkpoint.write(str(folder / "ckpt"))
    model.save_weights(folder / "m.weights.h5")
    model.save(folder / "m.keras")
    return types.SimpleNamespace(
        folder=folder,
        weights=model.get_weights(),
        slots={v.path: np.asarray(v) for v in model.optimizer.variables},
        losses=train(model, images),
    )


def continues_alike(model, images, source):
    for a, b in zip(model.get_weights(), source.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(train(model, images), source.losses, rtol=2e-5)


@pytest.mark.filterwarnings("ignore:Layer .* shards share devices")
@pytest.mark.parametrize(
    ("kind", "target"),
    but_slow(
        itertools.product(("weights.h5", "checkpoint"), (0, 1, 2, 4)),
        [("weights.h5", 2), ("checkpoint", 4)],
    ),
)
def test_weights_and_slots_move_between_layouts(kind, target, images, source):
    restored = make(target, seed=2)
    restored.optimizer.build(restored.trainable_variables)
    if kind == "checkpoint":
        status = tf.train.Checkpoint(
            model=restored, optimizer=restored.optimizer
        ).read(str(source.folder / "ckpt"))
        status.assert_existing_objects_matched()
    else:
        restored.load_weights(source.folder / "m.weights.h5")
    continues_alike(restored, images, source)


@pytest.mark.filterwarnings("ignore:Layer .* shards share devices")
@pytest.mark.parametrize(
    ("target",), but_slow([(1,), (2,), (3,), (4,)], [(1,), (4,)])
)
def test_keras_file_with_optimizer_state(target, images, source):
    names = [f"CPU:{i}" for i in range(target)]
    with convpar.ConvParallelStrategy(devices=names).scope():
        restored = keras.models.load_model(source.folder / "m.keras")
    assert restored.layers[0].shards == (5, 3, 2)
    for a, b in zip(
        restored.optimizer.variables, source.slots.values(), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(a), b)
    continues_alike(restored, images, source)


def test_plain_files_load_into_parallel_models(images, tmp_path):
    source = make(0)
    train(source, images)
    source.save(tmp_path / "plain.keras")
    source.save_weights(tmp_path / "plain.weights.h5")
    for name in ("plain.keras", "plain.weights.h5"):
        restored = make(3, seed=2)
        restored.load_weights(tmp_path / name)
        for a, b in zip(
            restored.get_weights(), source.get_weights(), strict=True
        ):
            np.testing.assert_array_equal(a, b)


def test_checkpoints_hold_the_variables_of_copies(images, tmp_path):
    """Not those of the model that was copied."""
    original = make(0)
    names = ["CPU:0", "CPU:1", "CPU:2"]
    with convpar.ConvParallelStrategy(devices=names).scope():
        parallel = convpar.parallelize(original)
    train(parallel, images, epochs=1)
    merged = convpar.merge(parallel)
    merged.set_weights([2 * w for w in merged.get_weights()])
    for name, model in (("parallel", parallel), ("merged", merged)):
        saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        path = saved.write(str(tmp_path / name))
        other = make(0, seed=2)
        other.optimizer.build(other.trainable_variables)
        read = tf.train.Checkpoint(model=other, optimizer=other.optimizer)
        read.read(path).assert_existing_objects_matched()
        found, expected = (
            [*m.variables, *m.optimizer.variables] for m in (other, model)
        )
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_keras_file_into_a_plain_model_without_this_package(source):
    """Weights and slots, read by a process that has only Keras."""
    folder = source.folder
    np.save(folder / "kernel.npy", source.weights[0])
    slot = next(
        value
        for path, value in source.slots.items()
        if "kernel" in path and value.shape == (3, 3, 1, 10)
    )
    np.save(folder / "slot.npy", slot)
    program = """
import sys, keras, numpy as np
model = keras.Sequential([
    keras.Input((16, 16, 1)), keras.layers.Conv2D(10, 3, activation="relu"),
    keras.layers.MaxPooling2D(), keras.layers.Conv2D(12, 3, padding="same"),
    keras.layers.Flatten(), keras.layers.Dense(10)])
model.compile("adam", "mse")
model.optimizer.build(model.trainable_variables)
model.load_weights("m.keras")
np.testing.assert_array_equal(model.layers[0].kernel, np.load("kernel.npy"))
slots = [v for v in model.optimizer.variables
         if tuple(v.shape) == (3, 3, 1, 10)]
np.testing.assert_array_equal(slots[0], np.load("slot.npy"))
assert "tf_convpar" not in sys.modules
print("equal")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == "equal", done.stderr


def test_names_are_those_of_conv2d():
    keras.utils.clear_session()
    plain = [v.path for v in make(0).variables]
    keras.utils.clear_session()
    assert [v.path for v in make(3).variables] == plain


def test_config_round_trip():
    layer = convpar.ConvParallel2D(8, 3, shards=(3, 1), wire_dtype="bfloat16")
    again = keras.layers.deserialize(keras.layers.serialize(layer))
    assert type(again) is type(layer)
    assert again.get_config() == layer.get_config()
    model = make(2)
    clone = keras.models.clone_model(model)
    assert [type(a) for a in clone.layers] == [type(a) for a in model.layers]


def test_a_link_to_a_file_stays(tmp_path):
    file, link = tmp_path / "v1.keras", tmp_path / "latest.keras"
    file.touch()
    file.chmod(0o600)
    link.symlink_to("v1.keras")
    make(3).save(link)
    assert link.is_symlink() and keras.models.load_model(file).count_params()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_full_disk_leaves_the_old_file(tmp_path):
    """Keras itself opens the file before it knows what it will write."""
    model = make(3)
    path = tmp_path / "m.keras"
    model.save(path)
    before = path.read_bytes()

    class Unserializable(keras.layers.Layer):
        def get_config(self):
            raise OSError("No space left on device")

        def call(self, x):
            return x

    model.add(Unserializable())
    with pytest.raises(OSError, match="No space left"):
        model.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["m.keras"]


@pytest.mark.slow
def test_keras_finds_the_layers_in_any_order_of_imports(source):
    program = """
import tf_convpar
import keras
print(keras.models.load_model("m.keras").layers[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=source.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "<ConvParallel2D" in done.stdout, done.stderr
