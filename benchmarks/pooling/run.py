"""Times the gradient of maxima: TensorFlow's op and ours.

    python benchmarks/pooling/run.py

Both are one `tf.function` each, on the same images, and take turns. Images and
windows are those of ResNet50, VGG16, Xception and InceptionV3 at 112 pixels,
batch 16.
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

# Pixels, channels, window, stride, padding.
SHAPES = [
    (58, 64, 3, 2, "VALID"),
    (112, 64, 2, 2, "VALID"),
    (56, 128, 2, 2, "VALID"),
    (28, 256, 2, 2, "VALID"),
    (14, 512, 2, 2, "VALID"),
    (53, 128, 3, 2, "SAME"),
    (27, 256, 3, 2, "SAME"),
    (14, 728, 3, 2, "SAME"),
    (25, 192, 3, 2, "VALID"),
]
BATCH, WARM_UP = 16, 2


def milliseconds(pixels, channels, window, stride, padding, repeats):
    """Median milliseconds of both, and how far they are apart."""
    rng = np.random.default_rng(0)
    shape = (BATCH, pixels, pixels, channels)
    x = tf.constant(rng.normal(size=shape).astype("float32"))
    y = tf.nn.max_pool2d(x, window, stride, padding)
    dy = tf.constant(rng.normal(size=y.shape).astype("float32"))
    ours = ops.module().tf_convpar_max_pool_gradient
    steps = [
        tf.function(
            lambda: tf.raw_ops.MaxPoolGrad(
                orig_input=x,
                orig_output=y,
                grad=dy,
                ksize=[1, window, window, 1],
                strides=[1, stride, stride, 1],
                padding=padding,
            )
        ),
        tf.function(
            lambda: ours(
                images=x,
                maxima=y,
                gradients=dy,
                window=[window, window],
                stride=stride,
                padding=padding,
            )
        ),
    ]
    times, found = [[], []], [None, None]
    for _ in range(repeats + WARM_UP):
        for i, step in enumerate(steps):
            begin = time.perf_counter()
            found[i] = step()
            times[i].append(time.perf_counter() - begin)
    a, b = (value.numpy() for value in found)
    apart = np.abs(a - b).max() / np.abs(a).max()
    return [1e3 * statistics.median(own[WARM_UP:]) for own in times], apart


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    memory.keep()
    ops.load()
    table = rich.table.Table("images", "window", title="median ms")
    for column in ("TensorFlow", "ours", "faster by", "apart"):
        table.add_column(column, justify="right")
    for pixels, channels, window, stride, padding in SHAPES:
        (theirs, ours), apart = milliseconds(
            *(pixels, channels, window, stride, padding), options.repeats
        )
        table.add_row(
            f"{BATCH}x{pixels}x{pixels}x{channels}",
            f"{window}x{window}, stride {stride}, {padding.lower()}",
            f"{theirs:.2f}",
            f"{ours:.2f}",
            f"{theirs / ours:.2f}",
            f"{apart:.0e}",
        )
    rich.console.Console().print(table)


if __name__ == "__main__":
    main()
