"""Times the kernel gradient of depthwise convolutions: TensorFlow's and ours.

    python benchmarks/depthwise/run.py

Both are one `tf.function` each, on the same images, and take turns. Images and
windows are those of MobileNetV2, Xception, EfficientNetB0 and ConvNeXtTiny at
112 pixels, batch 16.
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

# Pixels, channels, window, stride.
SHAPES = [
    (56, 96, 3, 1),
    (56, 96, 3, 2),
    (14, 728, 3, 1),
    (28, 240, 5, 1),
    (28, 144, 5, 2),
    (14, 480, 5, 1),
    (7, 672, 5, 1),
    (4, 1152, 5, 1),
    (28, 96, 7, 1),
    (14, 192, 7, 1),
    (7, 384, 7, 1),
    (3, 768, 7, 1),
]
BATCH, WARM_UP = 16, 2


def milliseconds(pixels, channels, window, stride, repeats):
    """Median milliseconds of both, and how far they are apart."""
    rng = np.random.default_rng(0)
    out = -(-pixels // stride)
    x, dy = (
        tf.constant(rng.normal(size=(BATCH, n, n, channels)).astype("float32"))
        for n in (pixels, out)
    )
    steps = [
        tf.function(
            lambda native=native: ops.depthwise_kernel_gradient(
                x, dy, (window, window), stride, native=native
            )
        )
        for native in (False, True)
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
    table = rich.table.Table("images", "window", title="median ms")
    for name in ("TensorFlow", "ours", "faster by", "apart"):
        table.add_column(name, justify="right")
    for pixels, channels, window, stride in SHAPES:
        (theirs, ours), apart = milliseconds(
            pixels, channels, window, stride, options.repeats
        )
        table.add_row(
            f"{BATCH}x{pixels}x{pixels}x{channels}",
            f"{window}x{window}" + f", stride {stride}" * (stride > 1),
            f"{theirs:.2f}",
            f"{ours:.2f}",
            f"{theirs / ours:.2f}",
            f"{apart:.0e}",
        )
    rich.console.Console().print(table)


if __name__ == "__main__":
    main()
