"""Times ConcatShards and SplitShards beside concat, split and cast, on a card.

Bytes are those read and written. Their rate is set beside that of a plain copy.
A run does the same to several tensors in one function, so that what it costs to
call a function and to wait for a card is a small part of it.
"""

import card
import tensorflow as tf

from tf_convpar import ops

# Feature maps of 0.8 GB in float32, of which so many are moved in a run.
COUNT = 8
LARGE = {"last": (512, 28, 28, 500), "first": (512, 500, 28, 28)}
SMALL = {"last": (4, 7, 7, 500), "first": (4, 500, 7, 7)}
WIDTHS = [(300, 200), (333, 167), (125,) * 4, (50, 200, 250), (1, 499)]
DTYPES = [
    ("float32", "float32"),
    ("bfloat16", "float32"),
    ("float32", "bfloat16"),
    ("float16", "float16"),
]


def awaited(function, sets, device):
    """A run of a function of each set of arguments; the device is waited for.

    A number of each result is returned: what nobody asks for is not computed.
    """

    @tf.function(autograph=False)
    def numbers(sets):
        found = [tf.nest.flatten(function(*arguments)) for arguments in sets]
        last = [tf.reshape(results[-1], [-1])[-1] for results in found]
        return tf.stack([tf.cast(number, tf.float32) for number in last])

    def run():
        with tf.device(device):
            numbers(sets).numpy()

    return run


def row(op, axis, shape, widths, source, target, device, repeats):
    at = -1 if axis == "last" else 1
    with tf.device(device):
        wholes = [
            tf.cast(tf.random.normal(shape), source) for _ in range(COUNT)
        ]
        parts = [
            tuple(tf.identity(p) for p in tf.split(whole, widths, at))
            for whole in wholes
        ]

    def joined(*shards):
        return ops.concat_shards(shards, at, target, native=True)

    def joined_by_tensorflow(*shards):
        return tf.concat([tf.cast(shard, target) for shard in shards], at)

    def cut(value):
        return ops.split_shards(value, widths, at, target, native=True)

    def cut_by_tensorflow(value):
        return [tf.cast(part, target) for part in tf.split(value, widths, at)]

    def copied(value):
        return tf.raw_ops.DeepCopy(x=value)

    mine, theirs = {
        "join": (joined, joined_by_tensorflow),
        "cut": (cut, cut_by_tensorflow),
    }[op]
    pieces = [(whole,) for whole in wholes]
    given = parts if op == "join" else pieces
    runs = [
        awaited(mine, given, device),
        awaited(theirs, given, device),
        awaited(copied, pieces, device),
    ]
    (own, other, copy), _ = card.turns(runs, repeats)
    size = COUNT * wholes[0].shape.num_elements()
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
        card.told(row(op, axis, shape, widths, *dtypes, device, given.repeats))
        for op in ("join", "cut")
        for axis, shape in shapes.items()
        for dtypes in DTYPES
        for widths in WIDTHS
    ]
    card.show(given, device, rows)


if __name__ == "__main__":
    main()
