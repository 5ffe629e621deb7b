"""One side of a comparison of training steps; `compare.py` starts several.

It reads a line, makes a training step, and writes its seconds and its loss. So
sides can take turns, and each is alone while it works.
"""

import os
import sys
import time

# Of the networks of paper 1; others are applications of Keras.
BATCHES = {"500:1500": 64, "50:500": 64}
SIZES = {"500:1500": 32, "50:500": 32}
CLASSES = {"500:1500": 10, "50:500": 10}
BATCH, SIZE, CLASSES_OF_ALL = 16, 112, 1000


def data(name):
    import numpy as np

    rng = np.random.default_rng(0)
    n, size = BATCHES.get(name, BATCH), SIZES.get(name, SIZE)
    x = rng.normal(size=(n, size, size, 3)).astype("float32")
    return x, rng.integers(0, CLASSES.get(name, CLASSES_OF_ALL), n)


def keras_step(name, threads, algorithm=None, jit=False):
    """A function that makes a step of a Keras model.

    With an algorithm, the model is in parallel form, on this one device.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras
    import tensorflow as tf

    import tf_convpar as convpar

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.utils.set_random_seed(1)
    if ":" in name:
        first, second = map(int, name.split(":"))
        model = keras.Sequential(
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
    else:
        model = getattr(keras.applications, name)(
            weights=None,
            input_shape=(SIZE, SIZE, 3),
            classifier_activation=None,
        )
    if algorithm:
        model = convpar.parallelize(model, algorithm=algorithm)
    model.compile(
        keras.optimizers.SGD(0.001, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit,
    )
    x, y = map(tf.constant, data(name))
    # The whole batch's shape is known, as in `fit` with drop_remainder=True.
    model.make_train_function()
    batches = iter(tf.data.Dataset.from_tensors((x, y)).repeat())

    def run():
        return float(model.train_function(batches)["loss"])

    return run


def torch_step(name, threads, channels_last):
    import torch
    import torch_networks

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    x, y = data(name)
    x = torch.from_numpy(x.transpose(0, 3, 1, 2).copy())
    y = torch.from_numpy(y)
    model = torch_networks.build(name)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.001, momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss()

    def run():
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss)

    return run


SIDES = {
    "Keras": lambda n, t: keras_step(n, t),
    "Keras, XLA": lambda n, t: keras_step(n, t, jit=True),
    "PyTorch": lambda n, t: torch_step(n, t, False),
    "PyTorch, channels last": lambda n, t: torch_step(n, t, True),
    "ConvParallel, auto": lambda n, t: keras_step(n, t, "auto"),
}


def main():
    side, name, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    os.sched_setaffinity(0, range(threads))
    os.environ["OMP_NUM_THREADS"] = str(threads)
    step = SIDES[side](name, threads)
    answers = sys.stdout
    sys.stdout = sys.stderr
    for _ in sys.stdin:
        begin = time.perf_counter()
        loss = step()
        print(time.perf_counter() - begin, loss, file=answers, flush=True)


if __name__ == "__main__":
    main()
