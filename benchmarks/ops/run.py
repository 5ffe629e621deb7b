"""Times the fused ops beside TensorFlow's own concat, split and cast.

Each side is one `tf.function`. Both run on the same inputs, in turns
(A B A B ...), so that whatever else the machine does meets both alike.
"""

import argparse
import dataclasses
import json
import os
import platform
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import rich.console
import rich.table
import tensorflow as tf

from tf_convpar import ops

SHAPES = [(64, 14, 14, 1500), (64, 28, 28, 500)]
SHARDS = [2, 3, 8]
DTYPES = [
    (tf.float32, tf.float32),
    (tf.bfloat16, tf.float32),
    (tf.float32, tf.bfloat16),
]


@dataclasses.dataclass(frozen=True)
class Row:
    """One comparison: medians in milliseconds."""

    op: str
    shape: tuple[int, ...]
    shards: int
    source: str
    target: str
    fused_ms: float
    tensorflow_ms: float

    @property
    def ratio(self) -> float:
        """Time of the fused op, as a part of TensorFlow's."""
        return self.fused_ms / self.tensorflow_ms


def unequal(width: int, count: int) -> list[int]:
    """Widths in proportion 1 : 2 : ... : count, as unequal devices get."""
    total = count * (count + 1) // 2
    sizes = [width * (i + 1) // total for i in range(count - 1)]
    return [*sizes, width - sum(sizes)]


def interleave(
    functions: list[Callable[[], object]], repeats: int
) -> list[float]:
    """Median time of each function in milliseconds, called in turns."""
    times: list[list[float]] = [[] for _ in functions]
    for repeat in range(repeats + 2):
        for function, taken in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            # The first two turns trace and warm up.
            if repeat >= 2:
                taken.append(time.perf_counter() - start)
    return [1e3 * statistics.median(taken) for taken in times]


def compare_concat(
    shape: tuple[int, ...],
    count: int,
    source: tf.DType,
    target: tf.DType,
    repeats: int,
) -> Row:
    """Times joining `count` shards of `source` into one tensor of `target`."""
    widths = unequal(shape[-1], count)
    shards = [
        tf.cast(tf.random.normal((*shape[:-1], width)), source)
        for width in widths
    ]

    @tf.function
    def fused(*shards):
        return ops.concat_shards(shards, dtype=target, native=True)

    @tf.function
    def tensorflow(*shards):
        return tf.concat([tf.cast(shard, target) for shard in shards], -1)

    ours, theirs = interleave(
        [lambda: fused(*shards), lambda: tensorflow(*shards)], repeats
    )
    return Row("concat", shape, count, source.name, target.name, ours, theirs)


def compare_split(
    shape: tuple[int, ...],
    count: int,
    source: tf.DType,
    target: tf.DType,
    repeats: int,
) -> Row:
    """Times cutting a tensor of `source` into `count` shards of `target`."""
    widths = unequal(shape[-1], count)
    value = tf.cast(tf.random.normal(shape), source)

    @tf.function
    def fused(value):
        return ops.split_shards(value, widths, dtypes=target, native=True)

    @tf.function
    def tensorflow(value):
        return [tf.cast(part, target) for part in tf.split(value, widths, -1)]

    ours, theirs = interleave(
        [lambda: fused(value), lambda: tensorflow(value)], repeats
    )
    return Row("split", shape, count, source.name, target.name, ours, theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [
        compare(shape, count, source, target, arguments.repeats)
        for compare in (compare_concat, compare_split)
        for shape in SHAPES
        for source, target in DTYPES
        for count in SHARDS
    ]
    if arguments.json:
        environment = {
            "tensorflow": tf.__version__,
            "compiler": ops.build_report().compiler,
            "machine": platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "repeats": arguments.repeats,
        }
        listed = [{**dataclasses.asdict(r), "ratio": r.ratio} for r in rows]
        print(
            json.dumps({"environment": environment, "rows": listed}, indent=2)
        )
        return
    table = rich.table.Table(title="median ms, and fused / TensorFlow")
    for heading in ("op", "shape", "dtypes", "shards"):
        table.add_column(heading)
    for heading in ("fused", "TensorFlow", "ratio"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row.op,
            "x".join(map(str, row.shape)),
            f"{row.source} -> {row.target}",
            str(row.shards),
            f"{row.fused_ms:.2f}",
            f"{row.tensorflow_ms:.2f}",
            f"{row.ratio:.2f}",
        )
    rich.console.Console().print(table)


if __name__ == "__main__":
    main()
