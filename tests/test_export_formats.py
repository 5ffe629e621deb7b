"""ONNX and LiteRT, by Keras' own exporters, from models cut over devices."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_convpar as convpar

L = keras.layers
LITERT = "keras.src.export.litert"  # Keras 3.12 has no such exporter.


def one_dimension():
    return keras.Sequential(
        [
            keras.Input((24, 3)),
            L.Conv1D(12, 3, padding="causal", activation="relu"),
            L.SeparableConv1D(12, 3, strides=2),
            L.BatchNormalization(),
            L.DepthwiseConv1D(3),
            L.Conv1DTranspose(7, 3, strides=2),
            L.GlobalAveragePooling1D(),
            L.Dense(4),
        ]
    )


def two_dimensions():
    x = inputs = keras.Input((16, 16, 3))
    x = L.Conv2D(12, 3, padding="same")(x)
    x = L.BatchNormalization()(x)
    x = skip = L.ReLU(max_value=6)(x)
    x = L.Conv2D(12, 3, padding="same", dilation_rate=2)(x)
    x = L.Add()([x, skip])
    x = L.MaxPooling2D()(x)
    x = L.SeparableConv2D(9, 3, depth_multiplier=2)(x)
    x = L.PReLU()(x)
    x = L.DepthwiseConv2D(3, strides=2)(x)
    x = L.Conv2DTranspose(6, 3, strides=2, padding="same")(x)
    x = L.Dense(5)(L.Flatten()(x))
    return keras.Model(inputs, x)


def three_dimensions():
    return keras.Sequential(
        [
            keras.Input((8, 8, 8, 2)),
            L.Conv3D(6, 3, activation="relu"),
            # LiteRT has no pooling of three dimensions of its own.
            L.Conv3D(6, 2, strides=2),
            L.Conv3DTranspose(5, 2, strides=2),
            L.Flatten(),
            L.Dense(3),
        ]
    )


def unequal(strategy, model):
    """Cut over three devices, every number it holds its own."""
    rng = np.random.default_rng(2)
    for variable in model.variables:
        values = rng.uniform(0.1, 1, variable.shape) * rng.choice(
            [1.0, -1.0] if "kernel" in variable.path else [1.0], variable.shape
        )
        variable.assign(values / 3)
    with strategy.scope():
        return convpar.parallelize(model)


def of_onnx(path, x):
    session = pytest.importorskip("onnxruntime").InferenceSession(path)
    (entry,) = session.get_inputs()
    return session.run(None, {entry.name: x})[0]


# A process of its own: nothing of this package is there to help.
LITE = """
import sys
import numpy as np
import tensorflow as tf
lite = tf.lite.Interpreter(model_path=sys.argv[1])
x = np.load(sys.argv[2])
(entry,), (result,) = lite.get_input_details(), lite.get_output_details()
lite.resize_tensor_input(entry["index"], x.shape)
lite.allocate_tensors()
lite.set_tensor(entry["index"], x)
lite.invoke()
np.save(sys.argv[2], lite.get_tensor(result["index"]))
assert "tf_convpar" not in sys.modules
"""


def of_litert(path, x):
    values = f"{path}.npy"
    np.save(values, x)
    done = subprocess.run(
        [sys.executable, "-c", LITE, path, values],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return np.load(values)


@pytest.mark.parametrize(
    ("form", "make"),
    [
        ("onnx", two_dimensions),
        *(
            pytest.param(form, make, marks=pytest.mark.slow)
            for form in ("onnx", "litert")
            for make in (one_dimension, two_dimensions, three_dimensions)
            if (form, make) != ("onnx", two_dimensions)
        ),
    ],
)
def test_formats_give_the_same_predictions(make, form, strategy, tmp_path):
    pytest.importorskip("tf2onnx" if form == "onnx" else LITERT)
    plain = make()
    model = unequal(strategy, plain)
    x = np.random.default_rng(3).normal(size=(5, *plain.input_shape[1:]))
    x = x.astype("float32")
    before = np.asarray(model(x))
    path = str(tmp_path / ("model.onnx" if form == "onnx" else "model.tflite"))
    model.export(path, format=form, verbose=False)
    found = (of_onnx if form == "onnx" else of_litert)(path, x)
    expected = np.asarray(plain(x))
    np.testing.assert_allclose(
        found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max()
    )
    np.testing.assert_array_equal(model(x), before)  # It goes on as it was.


@pytest.mark.slow
def test_the_converter_of_tensorflow_gives_the_same_predictions(
    strategy, tmp_path
):
    plain = two_dimensions()
    model = unequal(strategy, plain)
    x = np.random.default_rng(3).normal(size=(5, 16, 16, 3)).astype("float32")
    before = np.asarray(model(x))
    file = tmp_path / "model.tflite"
    file.write_bytes(tf.lite.TFLiteConverter.from_keras_model(model).convert())
    expected = np.asarray(plain(x))
    np.testing.assert_allclose(
        of_litert(str(file), x),
        expected,
        rtol=1e-4,
        atol=1e-5 * np.abs(expected).max(),
    )
    np.testing.assert_array_equal(model(x), before)
