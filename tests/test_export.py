"""SavedModels that need nothing but TensorFlow."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import small_cnn
from models import train

import tf_convpar as convpar
from tf_convpar.placement import ShardedVariable

SERVE = """
import sys
import numpy as np
import tensorflow as tf
served = tf.saved_model.load("model")
assert "tf_convpar" not in sys.modules
x = np.load("x.npy")
np.save("y.npy", served.serve(x))
by_signature = served.signatures["serving_default"](tf.constant(x))
np.testing.assert_array_equal(np.load("y.npy"), *by_signature.values())
graph = served.signatures["serving_default"].graph
nodes = list(graph.as_graph_def().node)
for function in graph.as_graph_def().library.function:
    nodes.extend(function.node_def)
print(sorted({node.device for node in nodes}))
print(sorted({node.op for node in nodes if "TfConvpar" in node.op}))
"""


def serve(tmp_path, x):
    """Predictions of the export, by a process with TensorFlow alone."""
    np.save(tmp_path / "x.npy", x)
    done = subprocess.run(
        [sys.executable, "-c", SERVE],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    devices, custom_ops = done.stdout.splitlines()[-2:]
    assert custom_ops == "[]"
    assert "task" not in devices
    return np.load(tmp_path / "y.npy")


def subclassed():
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.conv = convpar.ConvParallel2D(12, 3, shards=(3, 2, 1))
            self.pool = keras.layers.GlobalAveragePooling2D()
            self.head = keras.layers.Dense(10)

        def call(self, x):
            return self.head(self.pool(self.conv(x)))

    return Net()


@pytest.mark.parametrize(
    ("kind", "by"),
    [
        ("sequential", "convpar.export"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("subclassed", "model.export"),
                ("sequential", "model.export"),
                ("subclassed", "convpar.export"),
            )
        ),
    ],
)
def test_export_serves_the_same_predictions(
    kind, by, strategy, images, tmp_path
):
    with strategy.scope():
        if kind == "sequential":
            model = small_cnn(True, "adam")
        else:
            model = subclassed()
            model.compile(
                "adam", keras.losses.SparseCategoricalCrossentropy(True)
            )
    train(model, images, epochs=1)
    x = images[0][:8]
    expected = model.predict(x, verbose=0)
    if by == "convpar.export":
        convpar.export(model, tmp_path / "model")
    else:
        model.export(str(tmp_path / "model"), verbose=False)
    np.testing.assert_allclose(serve(tmp_path, x), expected, atol=1e-5)
    # The model goes on as it was, in shards.
    conv = model.layers[0] if kind == "sequential" else model.conv
    assert isinstance(conv.kernel.value, ShardedVariable)
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, atol=1e-6)
    train(model, images, epochs=1)


def test_both_ways_write_the_same_graph(strategy, tmp_path):
    with strategy.scope():
        model = small_cnn(True)
    convpar.export(model, tmp_path / "a")
    model.export(str(tmp_path / "b"), verbose=False)

    def ops(name):
        loaded = tf.saved_model.load(str(tmp_path / name))
        graph = loaded.signatures["serving_default"].graph.as_graph_def()
        nodes = list(graph.node)
        for function in graph.library.function:
            nodes.extend(function.node_def)
        return sorted(node.op for node in nodes)

    assert ops("a") == ops("b")
    sizes = [
        sorted(p.stat().st_size for p in (tmp_path / name).rglob("*.data*"))
        for name in "ab"
    ]
    assert sizes[0] == sizes[1]


def test_export_replaces_an_export_only(strategy, tmp_path):
    with strategy.scope():
        model = small_cnn(True)
    target = tmp_path / "model"
    convpar.export(model, target)
    before = (target / "saved_model.pb").read_bytes()
    convpar.export(model, target)
    assert (target / "saved_model.pb").exists()
    unbuilt = keras.Sequential([keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="built"):
        convpar.export(unbuilt, target)
    assert len((target / "saved_model.pb").read_bytes()) == len(before)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="new, an empty folder.*notes"):
        convpar.export(model, notes)
    assert (notes / "thesis.txt").read_text() == "years of work"
    with pytest.raises(ValueError, match="Expected a keras.Model.*'model'"):
        convpar.export("model", target)


class Inner(keras.Model):
    """Calls a function of TensorFlow's, which keeps what it has traced."""

    def __init__(self):
        super().__init__()
        self.conv = convpar.ConvParallel2D(6, 3, shards=(3, 2, 1))

    @tf.function
    def convolved(self, x):
        return self.conv(x)

    def call(self, x):
        return self.convolved(x)


def test_functions_within_a_model_stay_as_they_are(strategy, tmp_path):
    with strategy.scope():
        model = Inner()
    x = np.ones((2, 8, 8, 3), "float32")
    model.conv(x)  # Not built while the function is traced.
    for name in "ab":
        expected = model(x)
        model.export(str(tmp_path / name), verbose=False)
        served = tf.saved_model.load(str(tmp_path / name))
        np.testing.assert_allclose(served.serve(x), expected, rtol=1e-5)
        np.testing.assert_array_equal(model(x), expected)
        model(x[:1])  # Of a shape that only the export has traced.
        model.set_weights([2 * w for w in model.get_weights()])
        np.testing.assert_allclose(model(x), 2 * expected, rtol=1e-5)


def test_saving_the_shards_themselves_is_refused(strategy, tmp_path):
    """By TensorFlow's own function, which no longer knows of merged ones."""
    with strategy.scope():
        model = small_cnn(True)
    save = tf.saved_model.save.__wrapped__
    with pytest.raises(NotImplementedError, match=r"model.export.*conv2d|kern"):
        save(model, str(tmp_path / "model"))
