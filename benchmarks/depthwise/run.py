"""Times depthwise convolutions: TensorFlow's ops and ours, pass by pass.

    python benchmarks/depthwise/run.py
    python benchmarks/depthwise/run.py --passes "kernel gradient" --threads 2

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
from tf_convpar.cluster import memory

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


def forward(native, x, dy, kernel, stride, activation="linear"):
    """Feature maps; with an activation, of the bias as well."""
    bias = tf.zeros(kernel.shape[-1])
    if native:
        after = ops.Epilogue(bias=bias, activation=activation)
        return ops.depthwise(x, kernel, after, stride)
    strides = [1, stride, stride, 1]
    y = tf.nn.depthwise_conv2d(x, kernel[..., None], strides, "SAME")
    return y if activation == "linear" else tf.nn.relu6(y + bias)


def with_relu6(*given):
    """Forward as in inference."""
    return forward(*given, activation="relu6")


def input_gradient(native, x, dy, kernel, stride):
    """By the images; ours has no strides."""
    if native:
        turned = kernel[::-1, ::-1]
        return ops.depthwise(dy, turned)
    return tf.raw_ops.DepthwiseConv2dNativeBackpropInput(
        input_sizes=tf.shape(x),
        filter=kernel[..., None],
        out_backprop=dy,
        strides=[1, stride, stride, 1],
        padding="SAME",
    )


def kernel_gradient(native, x, dy, kernel, stride):
    """By the kernel."""
    return ops.depthwise_kernel_gradient(
        x, dy, kernel.shape[:2], stride, native=native
    )


PASSES = {
    "forward": forward,
    "forward, bias and relu6": with_relu6,
    "input gradient": input_gradient,
    "kernel gradient": kernel_gradient,
}


def milliseconds(run, pixels, channels, window, stride, repeats):
    """Median milliseconds of both, and how far they are apart."""
    rng = np.random.default_rng(0)
    out = -(-pixels // stride)
    x, dy = (
        tf.constant(rng.normal(size=(BATCH, n, n, channels)).astype("float32"))
        for n in (pixels, out)
    )
    shape = (window, window, channels)
    kernel = tf.constant(rng.normal(size=shape).astype("float32"))
    steps = [
        tf.function(lambda native=native: run(native, x, dy, kernel, stride))
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
    parser.add_argument("--passes", nargs="*", default=PASSES, choices=PASSES)
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    memory.keep()
    for name in options.passes:
        table = rich.table.Table("images", "window", title=f"{name}, median ms")
        for column in ("TensorFlow", "ours", "faster by", "apart"):
            table.add_column(column, justify="right")
        for pixels, channels, window, stride in SHAPES:
            if name == "input gradient" and stride > 1:
                continue
            (theirs, ours), apart = milliseconds(
                *(PASSES[name], pixels, channels, window, stride),
                options.repeats,
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
