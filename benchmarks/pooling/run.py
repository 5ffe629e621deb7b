"""Times pooling in inference, and the gradient of maxima: TensorFlow and ours.

    python benchmarks/pooling/run.py

Both are one `tf.function` each, on the same images, and take turns. Images and
windows are those of Keras' models at 112 pixels.
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
from tf_convpar.cluster import memory

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
# The same, and what is made, for inference.
POOLS = [
    (58, 64, 3, 2, "VALID", "max"),
    (28, 256, 2, 2, "VALID", "max"),
    (14, 728, 3, 2, "SAME", "max"),
    (11, 192, 3, 2, "VALID", "max"),
    (11, 192, 3, 1, "SAME", "average"),
    (5, 768, 3, 1, "SAME", "average"),
    (28, 96, 28, 1, "VALID", "average"),
    (4, 1152, 4, 1, "VALID", "average"),
]
# Batches, and how many layers there are in a step, beside which a call counts
# for little.
BATCHES = {1: 24, 32: 3}


def images(batch, pixels, channels, seed=0):
    shape = batch, pixels, pixels, channels
    x = np.random.default_rng(seed).normal(size=shape)
    return tf.constant(x.astype("float32"))


def pools(batch, case, repeats):
    """Median milliseconds of a layer of both, and how far they are apart."""
    pixels, channels, window, stride, padding, kind = case
    count = BATCHES[batch]
    layers = [images(batch, pixels, channels, seed) for seed in range(count)]
    theirs = tf.nn.max_pool2d if kind == "max" else tf.nn.avg_pool2d
    if window == pixels:

        def theirs(x, *_):
            return tf.reduce_mean(x, [1, 2], keepdims=True)  # As Keras does.

    own = (window, window), stride, padding.lower()
    steps = [
        tf.function(
            lambda: [theirs(x, window, stride, padding) for x in layers]
        ),
        tf.function(lambda: [ops.pool(x, *own, kind=kind) for x in layers]),
    ]
    (theirs, ours), apart = in_turns(steps, repeats)
    return (theirs / count, ours / count), apart


def gradients(case, repeats):
    """Median milliseconds of both gradients, and how far they are apart."""
    pixels, channels, window, stride, padding = case
    x = images(BATCH, pixels, channels)
    y = tf.nn.max_pool2d(x, window, stride, padding)
    rng = np.random.default_rng(1)
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
    return in_turns(steps, repeats)


def in_turns(steps, repeats):
    times, found = [[], []], [None, None]
    for _ in range(repeats + WARM_UP):
        for i, step in enumerate(steps):
            begin = time.perf_counter()
            found[i] = step()
            times[i].append(time.perf_counter() - begin)
    a, b = (np.asarray(value) for value in found)
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
    rows = [
        (batch, case[:5], case[5], pools(batch, case, options.repeats))
        for batch in BATCHES
        for case in POOLS
    ]
    rows += [
        (BATCH, case, "gradient of max", gradients(case, options.repeats))
        for case in SHAPES
    ]
    table = rich.table.Table("images", "window", "what", title="median ms")
    for column in ("TensorFlow", "ours", "faster by", "apart"):
        table.add_column(column, justify="right")
    for batch, case, what, ((theirs, ours), apart) in rows:
        pixels, channels, window, stride, padding = case
        table.add_row(
            f"{batch}x{pixels}x{pixels}x{channels}",
            f"{window}x{window}, stride {stride}, {padding.lower()}",
            what,
            f"{theirs:.3f}",
            f"{ours:.3f}",
            f"{theirs / ours:.2f}",
            f"{apart:.0e}",
        )
    rich.console.Console(width=100).print(table)


if __name__ == "__main__":
    main()
