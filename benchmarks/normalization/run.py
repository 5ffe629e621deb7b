"""Times normalization, forward and backward, in several ways.

For batch normalization these are Keras' own layer, TensorFlow's fused op, and
what this package does on one device and with a shard alike, before anything is
exchanged; for that of pixels and groups Keras' layer and this package's op.
Each is one `tf.function`. They run on the same feature maps, in turns (A B C A
B C ...). With an activation, that follows the normalization, or a bias.
"""

import argparse
import functools
import json
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import rich.console
import rich.table
import tensorflow as tf

from tf_convpar import ops
from tf_convpar.cluster import memory
from tf_convpar.sharding import _normalized_sums
from tf_convpar.sharding.rules import normalization

# Feature maps of MobileNetV2, ResNet50 and DenseNet121 at 112 pixels, batch 16.
SHAPES = [
    (16, 56, 56, 96),
    (16, 28, 28, 64),
    (16, 28, 28, 256),
    (16, 14, 14, 512),
    (16, 4, 4, 2048),
]
ACTIVATIONS = {
    "gelu": tf.nn.gelu,
    "linear": tf.identity,
    "relu": tf.nn.relu,
    "relu6": tf.nn.relu6,
    "silu": tf.nn.silu,
}
WARM_UP = 2
DEVICE = "/device:CPU:0"


def learned(layer, call):
    """A function that returns a layer's output and all gradients."""

    @tf.function
    def step(x, dy):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = call(layer, x)
        return y, tape.gradient(y, [x, *layer.trainable_weights], dy)

    return step


def by_keras(layer, x, activation):
    return ACTIVATIONS[activation](layer(x, training=True))


def by_tensorflow(layer, x, activation):
    y, *_ = tf.compat.v1.nn.fused_batch_norm(
        x, layer.gamma, layer.beta, epsilon=layer.epsilon, is_training=True
    )
    return ACTIVATIONS[activation](y)


def fused(layer, x, activation):
    weights = {weight.name: tf.identity(weight) for weight in layer.weights}
    term = normalization.own_term(layer, x, 3, weights, DEVICE)
    moving = [layer.moving_mean, layer.moving_variance]
    before = [weights[variable.name] for variable in moving]
    after = normalization.moved_on(
        DEVICE, layer, before, term.statistics.moments
    )
    for variable, value in zip(moving, after, strict=True):
        variable.assign(value)
    return _normalized_sums.combined([term], activation)


def by_layer(layer, x, activation):
    return ACTIVATIONS[activation](layer(x))


def of_pixels(layer, x, activation):
    y = ops.layer_normalization(x, layer.gamma, layer.beta, layer.epsilon)
    return ACTIVATIONS[activation](y)


def of_groups(layer, x, activation):
    return ops.group_normalization(
        *(x, layer.groups, layer.gamma, layer.beta, layer.epsilon), activation
    )


class Bias(keras.layers.Layer):
    """A number for each channel, which is added."""

    def build(self, shape):
        """Makes the numbers."""
        self.beta = self.add_weight(shape=(shape[-1],))


def by_operations(layer, x, activation):
    return ACTIVATIONS[activation](tf.nn.bias_add(x, layer.beta))


def biased(layer, x, activation):
    return ops.biased(x, layer.beta, activation)


KINDS = {
    "batch": (
        keras.layers.BatchNormalization,
        {
            "keras": by_keras,
            "tensorflow": by_tensorflow,
            "fused": fused,
        },
    ),
    "layer": (
        keras.layers.LayerNormalization,
        {"keras": by_layer, "fused": of_pixels},
    ),
    "group": (
        keras.layers.GroupNormalization,
        {"keras": by_layer, "fused": of_groups},
    ),
    "bias": (Bias, {"keras": by_operations, "fused": biased}),
}


def milliseconds(shape, repeats, kind, activation):
    """Median milliseconds of each way."""
    x, dy = tf.random.normal(shape), tf.random.normal(shape)
    steps = []
    make, ways = KINDS[kind]
    for way in ways.values():
        call = functools.partial(way, activation=activation)
        layer = make()
        layer.build(shape)
        steps.append(learned(layer, call))
    times = [[] for _ in steps]
    for _ in range(repeats + WARM_UP):
        for step, own in zip(steps, times, strict=True):
            begin = time.perf_counter()
            step(x, dy)
            own.append(time.perf_counter() - begin)
    return [1e3 * statistics.median(own[WARM_UP:]) for own in times]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS, default="batch")
    parser.add_argument("--activation", choices=ACTIVATIONS, default="linear")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    memory.keep()
    ways = [*KINDS[options.kind][1]]
    rows = [
        {
            "shape": shape,
            **dict(
                zip(
                    ways,
                    milliseconds(
                        *(shape, options.repeats),
                        *(options.kind, options.activation),
                    ),
                    strict=True,
                )
            ),
        }
        for shape in SHAPES
    ]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    table = rich.table.Table("maps", title="median ms, forward and backward")
    for way in (*ways, "Keras / fused"):
        table.add_column(way.replace("_", " "), justify="right")
    for row in rows:
        times = [row[way] for way in ways]
        ratio = row["keras"] / row["fused"]
        table.add_row(
            "x".join(map(str, row["shape"])),
            *(f"{ms:.2f}" for ms in times),
            f"{ratio:.1f}",
        )
    rich.console.Console().print(table)


if __name__ == "__main__":
    main()
