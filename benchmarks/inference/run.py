"""Times convolutions in inference: TensorFlow's, ours and Winograd's.

    python benchmarks/inference/run.py

Each side is one `tf.function` of several layers of one shape, with biases and
ReLU, whose kernels are more than caches hold, as in a model. They take turns.
Shapes are those of Keras' models at 112 pixels.
"""

import argparse
import math
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import rich.console
import rich.table
import tensorflow as tf

from tf_convpar import ops
from tf_convpar.algorithms import Windows
from tf_convpar.algorithms import convolve
from tf_convpar.cluster import memory
from tf_convpar.ops import Epilogue

# Pixels of a side, window, stride, channels, filters.
SHAPES = [
    (112, (7, 7), 2, 3, 64),
    (112, (3, 3), 2, 3, 32),
    (28, (1, 1), 1, 64, 256),
    (28, (1, 1), 2, 256, 512),
    (14, (1, 1), 1, 512, 128),
    (7, (1, 1), 1, 256, 1024),
    (4, (1, 1), 1, 2048, 512),
    (56, (1, 1), 1, 16, 96),
    (28, (1, 1), 1, 144, 24),
    (14, (1, 1), 1, 32, 192),
    (7, (1, 1), 1, 576, 96),
    (28, (3, 3), 1, 64, 64),
    (14, (3, 3), 1, 128, 128),
    (7, (3, 3), 1, 256, 256),
    (4, (3, 3), 1, 512, 512),
    (28, (3, 3), 1, 128, 32),
    (7, (3, 3), 1, 128, 32),
    (5, (1, 7), 1, 192, 192),
    (11, (3, 3), 1, 96, 96),
    (56, (3, 3), 1, 128, 128),
    (14, (3, 3), 2, 256, 256),
]
KERNELS_MIB, MOST_KERNELS, WARM_UP = 48, 24, 3


def milliseconds(batch, shape, repeats):
    """Median milliseconds of one layer, of each, and how far two are apart."""
    pixels, window, stride, channels, filters = shape
    rng = np.random.default_rng(0)
    x = tf.constant(
        rng.normal(size=(batch, pixels, pixels, channels)), tf.float32
    )
    size = (*window, channels, filters)
    count = KERNELS_MIB * 2**20 // (4 * math.prod(size))
    kernels = [
        tf.Variable(rng.normal(size=size), dtype="float32")
        for _ in range(max(1, min(MOST_KERNELS, count)))
    ]
    bias = tf.constant(rng.normal(size=filters), tf.float32)

    def tensorflow(kernel):
        maps = tf.nn.conv2d(x, kernel, stride, "SAME")
        return tf.nn.relu(tf.nn.bias_add(maps, bias))

    def ours(kernel):
        return ops.convolution(
            x,
            kernel,
            Epilogue(bias=bias, activation="relu", remember=True),
            stride=stride,
            padding="same",
        )

    def winograd(kernel):
        maps = convolve(
            x,
            kernel,
            Windows(padding="same"),
            Epilogue(bias=bias, remember=True),
            algorithm="winograd",
        )
        return tf.nn.relu(maps)

    sides = [tensorflow, ours]
    if min(window) > 1 and stride == 1:
        sides.append(winograd)
    steps = [
        tf.function(lambda run=run: [run(k) for k in kernels], autograph=False)
        for run in sides
    ]
    times, found = [[] for _ in sides], [None for _ in sides]
    for _ in range(repeats + WARM_UP):
        for i, step in enumerate(steps):
            begin = time.perf_counter()
            found[i] = step()
            times[i].append((time.perf_counter() - begin) / len(kernels))
    a, b = (value[0].numpy() for value in found[:2])
    apart = np.abs(a - b).max() / np.abs(a).max()
    return [1e3 * statistics.median(own[WARM_UP:]) for own in times], apart


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 32])
    parser.add_argument("--shapes", type=int, nargs="*")
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    memory.keep()
    ops.load()
    table = rich.table.Table(
        "images", "window/stride, filters", title="median ms of a layer"
    )
    for column in ("TensorFlow", "ours", "faster by", "Winograd", "apart"):
        table.add_column(column, justify="right")
    for batch in options.batch:
        for shape in [SHAPES[i] for i in options.shapes or range(len(SHAPES))]:
            times, apart = milliseconds(batch, shape, options.repeats)
            pixels, window, stride, channels, filters = shape
            table.add_row(
                f"{batch}x{pixels}x{pixels}x{channels}",
                f"{window[0]}x{window[1]}/{stride}, {filters}",
                *(f"{own:.3f}" for own in times[:2]),
                f"{times[0] / times[1]:.2f}",
                f"{times[2]:.3f}" if len(times) > 2 else "",
                f"{apart:.0e}",
            )
    rich.console.Console().print(table)


if __name__ == "__main__":
    main()
