"""Exports by other ways than `Model.export`, each of which Keras allows.

All that is written must be plain: it is read by a process without this package.
"""

import functools
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import tf_convpar as convpar
from tf_convpar.layers import _files
from tf_convpar.layers import is_merged

L = keras.layers
X = np.random.default_rng(0).normal(size=(3, 8, 8, 3)).astype("float32")
SPEC = tf.TensorSpec((None, 8, 8, 3), tf.float32)


def network():
    x = inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(9, 3, padding="same", use_bias=False)(x)
    x = L.ReLU()(L.BatchNormalization()(x))
    x = L.Conv2D(6, 3)(L.MaxPooling2D()(x))
    model = keras.Model(inputs, L.Dense(4)(L.Flatten()(x)))
    model.compile("adam", "mse")
    return model


def trained(kind):
    """On one device with ops of its own, or in shards with their slots."""
    if kind == "auto":
        model = convpar.parallelize(network(), algorithm="auto")
    else:
        names = ["CPU:0", "CPU:1", "CPU:2"]
        with convpar.ConvParallelStrategy(devices=names).scope():
            model = convpar.parallelize(network(), {".*": (3, 2, 1)})
    model.fit(X, np.ones((3, 4)), verbose=0)
    return model


class Served(tf.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    @tf.function(input_signature=[SPEC])
    def serve(self, x):
        return self.model(x, training=False)


def archived(model, path, function):
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serve", function, [SPEC])
    archive.write_out(path, verbose=False)


WAYS = {
    "archive": lambda m, path: archived(m, path, m.call),
    "partial": lambda m, path: archived(
        m, path, functools.partial(m.__call__, training=False)
    ),
    "model": tf.saved_model.save,
    "module": lambda m, path: tf.saved_model.save(Served(m), path),
}

LOAD = """
import sys
import numpy as np
import tensorflow as tf
x = np.load("x.npy")
for name in sys.argv[1:]:
    served = tf.saved_model.load(name)
    if hasattr(served, "serve"):
        found = served.serve(x)
    else:
        (found,) = served.signatures["serving_default"](tf.constant(x)).values()
    np.save(f"{name}.npy", found)
assert "tf_convpar" not in sys.modules
"""


def nodes_of(folder):
    """All nodes of a SavedModel, those of functions too."""
    content = (folder / "saved_model.pb").read_bytes()
    (meta,) = saved_model_pb2.SavedModel.FromString(content).meta_graphs
    functions = meta.graph_def.library.function
    return [
        *meta.graph_def.node,
        *(node for function in functions for node in function.node_def),
    ]


@pytest.mark.slow
def test_ways_to_export(tmp_path):
    expected = {}
    for kind in ("filters", "auto"):
        model = trained(kind)
        before = model.predict(X, verbose=0)
        for way, write in WAYS.items():
            folder = tmp_path / f"{kind}-{way}"
            write(model, str(folder))
            nodes = nodes_of(folder)
            assert not [n.op for n in nodes if n.op.startswith("TfConvpar")]
            assert not [n.device for n in nodes if "CPU:1" in n.device]
            assert not [n.name for n in nodes if "_shard_" in n.name]
            expected[folder.name] = before
        np.testing.assert_array_equal(model.predict(X, verbose=0), before)
    np.save(tmp_path / "x.npy", X)
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *expected],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for name, values in expected.items():
        found = np.load(tmp_path / f"{name}.npy")
        np.testing.assert_allclose(found, values, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_what_is_saved_again_has_the_weights_of_then(tmp_path):
    """And its functions go on as they were, on the model's devices."""
    model = trained("filters")
    module, archive = Served(model), keras.export.ExportArchive()
    archive.track(model)
    endpoint = archive.add_endpoint("serve", module.model.call, [SPEC])
    for number in range(2):
        expected = model.predict(X, verbose=0)
        folders = [str(tmp_path / f"{name}{number}") for name in "ab"]
        tf.saved_model.save(module, folders[0])
        archive.write_out(folders[1], verbose=False)
        for folder in folders:
            loaded = tf.saved_model.load(folder)
            np.testing.assert_allclose(loaded.serve(X), expected, atol=1e-5)
        for function in (module.serve, endpoint):
            np.testing.assert_allclose(function(X), expected, atol=1e-5)
        assert model.layers[1].is_sharded
        model.set_weights([w + 0.1 for w in model.get_weights()])


def test_what_was_traced_before_is_refused(tmp_path):
    model = trained("filters")
    module = Served(model)
    traced = module.serve.get_concrete_function()
    with pytest.raises(ValueError, match="traced while they are saved"):
        tf.saved_model.save(module, str(tmp_path / "split"), signatures=traced)
    function = tf.function(model)
    function(X)
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serve", function)
    with pytest.raises(ValueError, match=r"Or save `convpar.merge"):
        archive.write_out(str(tmp_path / "split"))
    assert not list(tmp_path.iterdir())
    merged = Served(convpar.merge(model))
    traced = merged.serve.get_concrete_function()
    tf.saved_model.save(merged, str(tmp_path / "merged"), signatures=traced)


def test_what_was_traced_before_on_one_device_needs_the_package(tmp_path):
    model = trained("auto")
    module = Served(model)
    traced = module.serve.get_concrete_function()
    with pytest.warns(RuntimeWarning, match="traced while they are saved"):
        tf.saved_model.save(module, str(tmp_path), signatures=traced)
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_allclose(loaded.serve(X), module.serve(X), atol=1e-5)


def test_a_model_that_is_not_held_is_named(tmp_path):
    model = trained("filters")
    archive = keras.export.ExportArchive()
    archive.add_endpoint("serve", lambda x: model(x), [SPEC])
    with pytest.raises(ValueError, match=r"archive.track\(model\).*'kernel'"):
        archive.write_out(str(tmp_path / "served"))
    assert model.layers[1].is_sharded


def test_other_objects_reach_tensorflow_as_they_are(tmp_path):
    given = []
    save = _files._plain_saved_model(lambda *args: given.append(args))
    module, options = tf.Module(), tf.saved_model.SaveOptions()
    module.model = network()
    traced = tf.function(module.model).get_concrete_function(SPEC)
    for signatures in (None, traced, {"serve": traced}):
        save(module, "path", signatures, options=options)
        assert given.pop() == (module, "path", signatures, options)
    with pytest.raises(
        ValueError, match="Expected an object of type `Trackable`"
    ):
        tf.saved_model.save(object(), str(tmp_path / "served"))
    assert not is_merged()
