"""Trains with numbers that are rounded where they travel, from several seeds.

    python benchmarks/wire/learn.py --output found.jsonl

Of split models, what `int8` would do is done by a hook, on devices of one
process: nothing is sent, but what arrives is what int8 would bring. Replicas
train by `SyncSGD(wire=...)` as it is. Runs that are in the output already are
not made again.
"""

import argparse
import json
import os
import pathlib
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import data
import hooks
import keras
import numpy as np
import tensorflow as tf

import tf_convpar as convpar
from tf_convpar.placement import BLOCK
from tf_convpar.replicas.wire import wire_of

L = keras.layers
SHARES = (3, 2, 1)
# The plan of each split; later convolutions have larger numbers. Mixed, the
# first half goes by samples and the second by filters.
SPLITS = {
    "filters": {".*": SHARES},
    "samples": {".*": {"split": "samples", "shards": SHARES}},
    "mixed": {
        "early.*": {"split": "samples", "shards": SHARES},
        "late.*": SHARES,
    },
}
# What is rounded, to how many bits; whether what rounding a gradient of a
# kernel lost is added to the next one.
ROUNDED = {
    "float32": {},
    "maps": {"maps": 8},
    "gradients": {"kernels": 8},
    "gradients, remembered": {"kernels": 8, "remember": True},
    "both": {"maps": 8, "kernels": 8},
    "both, remembered": {"maps": 8, "kernels": 8, "remember": True},
    # To see that the test can fail.
    "maps, int4": {"maps": 4},
    "gradients, int4": {"kernels": 4},
}
WAYS = [
    ("filters", "float32"),
    ("samples", "float32"),
    ("mixed", "float32"),
    ("filters", "maps"),
    ("samples", "gradients"),
    ("samples", "gradients, remembered"),
    ("mixed", "both"),
    ("mixed", "both, remembered"),
    ("filters", "maps, int4"),
    ("samples", "gradients, int4"),
    ("replicas", "float32"),
    ("replicas", "int8"),
    ("replicas", "int4"),
]


class Rounding(hooks.Hook):
    """Whole numbers of few bits, a scale for each 256, as they arrive."""

    def __init__(self, maps=None, kernels=None, remember=False):
        self._bits = {"maps": maps, "kernels": kernels}
        self._remember = remember
        self._lost = []
        self._seen = {}

    def there(self, x, kind):
        """Rounds maps. Kernels are not rounded, their gradients are."""
        bits = self._bits.get(kind) if kind == "maps" else None
        return x if bits is None else rounded(x, bits)

    def back(self, dy, kind):
        """Rounds gradients of maps, or of kernels."""
        bits = self._bits.get(kind)
        if bits is None:
            return dy
        if kind == "maps" or not self._remember:
            return rounded(dy, bits)
        lost = self._lost_of(dy)
        wanted = dy + lost
        arrives = rounded(wanted, bits)
        with tf.control_dependencies([lost.assign(wanted - arrives)]):
            return tf.identity(arrives)

    def _lost_of(self, dy):
        """What rounding lost of a gradient, which is the n-th of its graph.

        A function in which variables are made is traced again.
        """
        graph = tf.compat.v1.get_default_graph()
        number = self._seen[graph] = self._seen.get(graph, -1) + 1
        if len(self._seen) > 2:
            raise ValueError("Expected one graph to have all gradients.")
        if number == len(self._lost):
            with tf.init_scope():
                zeros = tf.zeros(dy.shape)
                self._lost.append(tf.Variable(zeros, trainable=False))
        return self._lost[number]

    def forget(self):
        """Begins anew."""
        for lost in self._lost:
            lost.assign(tf.zeros_like(lost))


def rounded(x, bits):
    """What `Blocks(bits)` decodes of what it encoded, in fewer ops."""
    flat = tf.reshape(x, [-1])
    left = -tf.size(flat) % BLOCK
    blocks = tf.reshape(tf.pad(flat, [[0, left]]), [-1, BLOCK])
    most = float(2 ** (bits - 1) - 1)
    scales = tf.reduce_max(tf.abs(blocks), axis=1, keepdims=True) / most
    blocks = tf.round(tf.math.divide_no_nan(blocks, scales)) * scales
    return tf.reshape(tf.reshape(blocks, [-1])[: tf.size(flat)], tf.shape(x))


def check_rounded():
    """`rounded` is the package's own coder."""
    x = tf.random.stateless_normal([1000], [1, 2]) ** 3
    for bits in (4, 8):
        wire = wire_of(f"int{bits}")
        decoded = wire.decode(wire.encode(x), 1000)
        assert np.array_equal(rounded(x, bits), decoded)


def conv(x, filters, name, size=3, strides=1, relu=True):
    x = L.Conv2D(
        filters, size, strides, padding="same", use_bias=False, name=name
    )(x)
    x = L.BatchNormalization(momentum=0.9)(x)
    return L.ReLU()(x) if relu else x


def small():
    """Four convolutions for digits of 8x8."""
    inputs = x = keras.Input((8, 8, 1))
    x = conv(x, 24, "early1")
    x = conv(x, 24, "early2")
    x = L.MaxPooling2D()(x)
    x = conv(x, 48, "late1")
    x = conv(x, 48, "late2")
    x = L.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, L.Dense(10)(x))


def resnet8():
    """ResNet-8: three blocks of two convolutions."""
    inputs = x = keras.Input((32, 32, 3))
    x = conv(x, 12, "early0")
    for number, filters in enumerate((12, 24, 48)):
        half = "early" if number < 1 else "late"
        strides = 1 if number == 0 else 2
        y = conv(x, filters, f"{half}{number}a", strides=strides)
        y = conv(y, filters, f"{half}{number}b", relu=False)
        if strides > 1:
            x = conv(x, filters, f"{half}{number}c", 1, strides, relu=False)
        x = L.ReLU()(L.Add()([x, y]))
    x = L.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, L.Dense(10)(x))


# Model, data, epochs, steps of each, samples of a step.
TASKS = {
    "digits": (small, data.digits, 40, 20, 50),
    "shapes": (resnet8, data.shapes, 16, 50, 60),
}
RATE = 0.1


def compiled(model, steps):
    """The model, ready to train for so many steps."""
    schedule = keras.optimizers.schedules.CosineDecay(RATE, steps)
    model.compile(
        keras.optimizers.SGD(schedule, momentum=0.9, weight_decay=1e-4),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
    )
    return model


def found_by(history):
    """What is told of a run."""
    return {
        "accuracy": history["val_accuracy"],
        "train": history["accuracy"][-1],
        "loss": history["loss"][-1],
    }


def seen(epochs):
    """The epochs after which held-out images are seen: 3/4, 7/8 and all."""
    return [epochs * n // 8 for n in (6, 7, 8)]


class Replicas:
    """Replicas with unequal batches, made anew for each seed."""

    def __init__(self, task, wire):
        self._make, load, self.epochs, self._steps, self._batch = TASKS[task]
        self._train, self._test = load()
        self._wire = wire

    def run(self, seed):
        """Accuracy on held-out images, as of a `Learner`."""
        keras.utils.set_random_seed(seed)
        method = convpar.replicas.SyncSGD(
            compiled(self._make(), self._steps * self.epochs),
            wire=self._wire,
            devices=[f"CPU:{i}" for i in range(len(SHARES))],
            shares=[float(share) for share in SHARES],
            seed=seed,
        )
        history = method.fit(
            *self._train,
            batch_size=self._batch // len(SHARES),
            epochs=self.epochs,
            steps_per_epoch=self._steps,
            validation_data=self._test,
            validation_batch_size=100,
            validation_freq=seen(self.epochs),
            verbose=0,
        ).history
        keras.backend.clear_session()
        return found_by(history)


class Learner:
    """A model that is traced once and trained from several seeds."""

    def __init__(self, task, split, rounding):
        self._make, load, self.epochs, self._steps, self._batch = TASKS[task]
        self._train, self._test = load()
        self._rounding = rounding
        strategy = convpar.ConvParallelStrategy(
            devices=[f"CPU:{i}" for i in range(len(SHARES))]
        )
        with strategy.scope():
            self._model = compiled(
                convpar.parallelize(self._make(), SPLITS[split]),
                self._steps * self.epochs,
            )
        self._optimizer = self._model.optimizer
        self._optimizer.build(self._model.trainable_variables)
        self._slots = [v.numpy() for v in self._optimizer.variables]

    def run(self, seed):
        """Accuracy on held-out images after the epochs that are `seen`."""
        keras.utils.set_random_seed(seed)
        self._model.set_weights(self._make().get_weights())
        for variable, value in zip(
            self._optimizer.variables, self._slots, strict=True
        ):
            variable.assign(value)
        self._rounding.forget()
        rng = np.random.default_rng(seed)
        images, labels = self._train
        samples = self._batch * self._steps * self.epochs
        times = -(-samples // len(images))
        order = np.concatenate(
            [rng.permutation(len(images)) for _ in range(times)]
        )[:samples]
        batches = (
            tf.data.Dataset.from_tensor_slices(order)
            .batch(self._batch, drop_remainder=True)
            .map(lambda i: (tf.gather(images, i), tf.gather(labels, i)))
        )
        test = tf.data.Dataset.from_tensor_slices(self._test).batch(100)
        history = self._model.fit(
            batches,
            epochs=self.epochs,
            steps_per_epoch=self._steps,
            validation_data=test,
            validation_freq=seen(self.epochs),
            verbose=0,
        ).history
        return found_by(history)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ways", type=int, nargs="*", help="numbers")
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="begin no run after so many"
    )
    options = parser.parse_args()
    begin = time.monotonic()
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * len(SHARES),
    )
    tf.config.threading.set_intra_op_parallelism_threads(1)
    check_rounded()
    rounding = Rounding()
    hooks.install(rounding)
    lines = []
    if options.output.exists():
        lines = options.output.read_text().splitlines()
    done = {
        (f["task"], f["split"], f["rounded"], f["seed"])
        for f in map(json.loads, lines)
    }
    numbers = range(len(WAYS)) if options.ways is None else options.ways
    for task in options.tasks:
        for split, kind in [WAYS[i] for i in numbers]:
            seeds = [
                seed
                for seed in range(options.seeds)
                if (task, split, kind, seed) not in done
            ]
            learner = None
            for seed in seeds:
                if time.monotonic() - begin > options.seconds:
                    return
                if learner is None and split == "replicas":
                    rounding.__init__()
                    learner = Replicas(task, kind)
                elif learner is None:
                    rounding.__init__(**ROUNDED[kind])
                    learner = Learner(task, split, rounding)
                start = time.monotonic()
                found = {
                    "task": task,
                    "split": split,
                    "rounded": kind,
                    "seed": seed,
                    "epochs": learner.epochs,
                    **learner.run(seed),
                    "seconds": time.monotonic() - start,
                }
                with options.output.open("a") as file:
                    file.write(json.dumps(found) + "\n")
                print(found, flush=True)


if __name__ == "__main__":
    main()
