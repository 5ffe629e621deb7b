"""Times pointwise convolutions in inference: TensorFlow's and ours.

    python benchmarks/pointwise/run.py

Each side is one `tf.function` of several layers of one shape, with biases and
ReLU, whose kernels are more than caches hold, as in a model. They take turns.
Shapes are those of ResNet50 and MobileNetV2 at 112 pixels.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import rich.console
import rich.table
import tensorflow as tf

from tf_convpar import ops
from tf_convpar.strategy import memory

# Pixels of a side, channels, filters.
SHAPES = [
    (28, 64, 256),
    (14, 512, 128),
    (7, 256, 1024),
    (7, 1024, 256),
    (4, 512, 2048),
    (4, 2048, 512),
    (28, 144, 24),
    (7, 576, 96),
]
KERNELS_MIB, MOST_KERNELS, WARM_UP = 48, 24, 3


def milliseconds(batch, pixels, channels, filters, repeats):
    """Median milliseconds of one layer, of both, and how far they are apart."""
    rng = np.random.default_rng(0)
    x = tf.constant(
        rng.normal(size=(batch, pixels, pixels, channels)), tf.float32
    )
    count = KERNELS_MIB * 2**20 // (4 * channels * filters)
    kernels = [
        tf.Variable(rng.normal(size=(1, 1, channels, filters)), dtype="float32")
        for _ in range(max(1, min(MOST_KERNELS, count)))
    ]
    bias = tf.constant(rng.normal(size=filters), tf.float32)

    def tensorflow(kernel):
        return tf.nn.relu(
            tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias)
        )

    def ours(kernel):
        matrix = tf.reshape(kernel, [channels, filters])
        return ops.pointwise(x, matrix, None, bias, "relu", remember=True)

    steps = [
        tf.function(lambda run=run: [run(k) for k in kernels], autograph=False)
        for run in (tensorflow, ours)
    ]
    times, found = [[], []], [None, None]
    for _ in range(repeats + WARM_UP):
        for i, step in enumerate(steps):
            begin = time.perf_counter()
            found[i] = step()
            times[i].append((time.perf_counter() - begin) / len(kernels))
    a, b = (value[0].numpy() for value in found)
    apart = np.abs(a - b).max() / np.abs(a).max()
    return [1e3 * statistics.median(own[WARM_UP:]) for own in times], apart


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 32])
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    memory.keep()
    ops.load()
    table = rich.table.Table("images", "filters", title="median ms of a layer")
    for column in ("TensorFlow", "ours", "faster by", "apart"):
        table.add_column(column, justify="right")
    for batch in options.batch:
        for pixels, channels, filters in SHAPES:
            (theirs, ours), apart = milliseconds(
                *(batch, pixels, channels, filters), options.repeats
            )
            table.add_row(
                f"{batch}x{pixels}x{pixels}x{channels}",
                str(filters),
                f"{theirs:.3f}",
                f"{ours:.3f}",
                f"{theirs / ours:.2f}",
                f"{apart:.0e}",
            )
    rich.console.Console().print(table)


if __name__ == "__main__":
    main()
