"""Times ConcatShards and SplitShards beside concat, split and cast, on a card.

Bytes are those read and written. Their rate is set beside that of a plain copy.
"""

import card
import tensorflow as tf

from tf_convpar import ops

# Feature maps of 0.8 GB in float32: starting a function takes no part of that.
LARGE = {"last": (512, 28, 28, 500), "first": (512, 500, 28, 28)}
SMALL = {"last": (4, 7, 7, 500), "first": (4, 500, 7, 7)}
WIDTHS = [(300, 200), (333, 167), (125,) * 4, (50, 200, 250), (1, 499)]
DTYPES = [
    ("float32", "float32"),
    ("bfloat16", "float32"),
    ("float32", "bfloat16"),
    ("float16", "float16"),
]


def awaited(function, arguments, device):
    """A run of a function that ends when the device is done."""

    def run():
        with tf.device(device):
            result = tf.nest.flatten(function(*arguments))[-1]
            tf.reshape(result, [-1])[-1].numpy()

    return run


def row(op, axis, shape, widths, source, target, device, repeats):
    at = -1 if axis == "last" else 1
    with tf.device(device):
        whole = tf.cast(tf.random.normal(shape), source)
        parts = [tf.identity(p) for p in tf.split(whole, widths, at)]

    def joined(*shards):
        return ops.concat_shards(shards, at, target, native=True)

    def joined_by_tensorflow(*shards):
        return tf.concat([tf.cast(shard, target) for shard in shards], at)

    def cut(value):
        return ops.split_shards(value, widths, at, target, native=True)

    def cut_by_tensorflow(value):
        return [tf.cast(part, target) for part in tf.split(value, widths, at)]

    def copied(*_):
        return tf.raw_ops.DeepCopy(x=whole)

    mine, theirs = {
        "join": (joined, joined_by_tensorflow),
        "cut": (cut, cut_by_tensorflow),
    }[op]
    given = parts if op == "join" else [whole]
    runs = [
        awaited(tf.function(function, autograph=False), given, device)
        for function in (mine, theirs, copied)
    ]
    (own, other, copy), _ = card.turns(runs, repeats)
    size = whole.shape.num_elements()
    moved = size * (tf.as_dtype(source).size + tf.as_dtype(target).size)
    rate = moved / own
    copy_rate = 2 * size * tf.as_dtype(source).size / copy
    return {
        "op": f"{op}, channels {axis}",
        "shards": " : ".join(map(str, widths)),
        "dtypes": f"{source} -> {target}",
        "GB/s": rate / 1e9,
        "of a copy": rate / copy_rate,
        "TensorFlow": own / other,
    }


def main():
    given = card.options(__doc__)
    device = card.wanted(given)
    if ops.native_on("ConcatShards", device) is False:
        raise SystemExit(
            f"Expected kernels for {device}. Received: "
            f"{ops.build_report().cuda} (docs/gpu.md)."
        )
    shapes = SMALL if given.small else LARGE
    rows = [
        row(op, axis, shape, widths, *dtypes, device, given.repeats)
        for op in ("join", "cut")
        for axis, shape in shapes.items()
        for dtypes in DTYPES
        for widths in WIDTHS
    ]
    card.show(given, device, rows)


if __name__ == "__main__":
    main()
