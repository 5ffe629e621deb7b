"""One side of a comparison of steps; `compare.py` starts several.

It reads a line, makes a step, and writes its seconds and a number: the loss, or
of `predict` the mean of the outputs' magnitudes. So sides can take turns, and
each is alone while it works.
"""

import json
import os
import pathlib
import sys
import tempfile
import time

# Of the networks of paper 1; others are applications of Keras.
BATCHES = {"500:1500": 64, "50:500": 64}
SIZES = {"500:1500": 32, "50:500": 32}
CLASSES = {"500:1500": 10, "50:500": 10}
SIZE, CLASSES_OF_ALL = 112, 1000


def data(name, batch):
    import numpy as np

    rng = np.random.default_rng(0)
    n, size = BATCHES.get(name, batch), SIZES.get(name, SIZE)
    x = rng.normal(size=(n, size, size, 3)).astype("float32")
    return x, rng.integers(0, CLASSES.get(name, CLASSES_OF_ALL), n)


def keras_model(name):
    """The model in Keras, with weights that do not depend on the side."""
    import keras

    keras.utils.set_random_seed(1)
    if ":" in name:
        first, second = map(int, name.split(":"))
        return keras.Sequential(
            [
                keras.Input((32, 32, 3)),
                keras.layers.Conv2D(first, 5, activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Conv2D(second, 5, activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Flatten(),
                keras.layers.Dense(10),
            ]
        )
    return getattr(keras.applications, name)(
        weights=None,
        input_shape=(SIZE, SIZE, 3),
        classifier_activation=None,
    )


def keras_step(asked, algorithm=None, jit=False):
    """A function that makes a step of a Keras model.

    With an algorithm, the model is in parallel form, on this one device.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras
    import numpy as np
    import tensorflow as tf

    import tf_convpar as convpar

    tf.config.threading.set_intra_op_parallelism_threads(asked["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(1)
    model = keras_model(asked["network"])
    if algorithm:
        model = convpar.parallelize(model, algorithm=algorithm)
    optimizer = {
        "SGD": lambda: keras.optimizers.SGD(0.001, momentum=0.9),
        "Adam": lambda: keras.optimizers.Adam(0.001),
    }[asked["optimizer"]]
    model.compile(
        optimizer(),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit,
    )
    x, y = map(tf.constant, data(asked["network"], asked["batch"]))
    if asked["mode"] == "predict":
        return lambda: float(np.abs(model.predict_on_batch(x)).mean())
    # The whole batch's shape is known, as in `fit` with drop_remainder=True.
    batches = iter(tf.data.Dataset.from_tensors((x, y)).repeat())
    model.make_train_function()
    return lambda: float(model.train_function(batches)["loss"])


def onnx_step(asked):
    """A function that predicts by onnxruntime, with the file of Keras' export.

    Its batch is fixed in the file, which gives it the same to go by.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras
    import numpy as np
    import onnx_networks
    import onnxruntime

    model = onnx_networks.exportable(keras_model(asked["network"]))
    x, _ = data(asked["network"], asked["batch"])
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.onnx"
        model.export(
            path,
            format="onnx",
            verbose=False,
            input_signature=[keras.InputSpec("float32", x.shape, name="x")],
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = asked["threads"]
        options.inter_op_num_threads = 1
        # Or its threads wait for the next run by spinning, on the cores of the
        # side whose turn it is: MobileNetV2 took 49 ms there, and 35 alone.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        session = onnxruntime.InferenceSession(path, options)
    given = {session.get_inputs()[0].name: x}
    return lambda: float(np.abs(session.run(None, given)[0]).mean())


def torch_step(asked, channels_last):
    import torch
    import torch_networks

    torch.set_num_threads(asked["threads"])
    torch.manual_seed(1)
    x, y = data(asked["network"], asked["batch"])
    x = torch.from_numpy(x.transpose(0, 3, 1, 2).copy())
    y = torch.from_numpy(y)
    model = torch_networks.build(asked["network"])
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    if asked["mode"] == "predict":
        model.eval()

        def run():
            with torch.inference_mode():
                return float(model(x).abs().mean())

        return run
    optimizer = {
        "SGD": lambda weights: torch.optim.SGD(weights, 0.001, momentum=0.9),
        "Adam": lambda weights: torch.optim.Adam(weights, 0.001),
    }[asked["optimizer"]](model.parameters())
    criterion = torch.nn.CrossEntropyLoss()

    def run():
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss)

    return run


SIDES = {
    "Keras": keras_step,
    "Keras, XLA": lambda asked: keras_step(asked, jit=True),
    "PyTorch": lambda asked: torch_step(asked, False),
    "PyTorch, channels last": lambda asked: torch_step(asked, True),
    "onnxruntime": onnx_step,
    "ConvParallel, auto": lambda asked: keras_step(asked, "auto"),
}


def main():
    asked = json.loads(sys.argv[1])
    os.sched_setaffinity(0, range(asked["threads"]))
    os.environ["OMP_NUM_THREADS"] = str(asked["threads"])
    answers = sys.stdout
    sys.stdout = sys.stderr
    step = SIDES[asked["side"]](asked)
    for _ in sys.stdin:
        begin = time.perf_counter()
        number = step()
        print(time.perf_counter() - begin, number, file=answers, flush=True)


if __name__ == "__main__":
    main()
