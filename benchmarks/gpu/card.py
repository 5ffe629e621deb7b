"""The card that a benchmark runs on, and times of what takes turns on it."""

import argparse
import json
import os
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Several logical devices share one card.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

import numpy as np
import rich.console
import rich.table
import tensorflow as tf

from tf_convpar import machines
from tf_convpar import ops


def options(description, **lists):
    """The options that all programs here have, and what a program may run.

    Each of `lists` has the names to choose from; all are run without a choice.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument(
        "--device",
        default="GPU:0",
        help="CPU:0 tries the program where there is no card, for no figures",
    )
    parser.add_argument(
        "--small", action="store_true", help="sizes to try the program with"
    )
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    for name, choices in lists.items():
        parser.add_argument(
            f"--{name}", nargs="+", choices=[*choices], default=[*choices]
        )
    return parser.parse_args()


def wanted(given):
    """The full name of the device; ends the program in a line without it."""
    kind = given.device.partition(":")[0].upper()
    found = {
        device.name.rpartition("device:")[2]: device.name
        for device in tf.config.list_logical_devices(kind)
    }
    if given.device.upper() not in found:
        sys.exit(
            f"Expected {given.device} of TensorFlow {tf.__version__}. Received "
            f"{', '.join(found) or 'no such device'}: this needs a card, its "
            "driver, and the CUDA libraries (docs/gpu.md)."
        )
    name = found[given.device.upper()]
    prefix = "/job:localhost/replica:0/task:0"
    return name if name.startswith("/job") else prefix + name


def split(given):
    """Two logical devices of one, before TensorFlow starts any."""
    kind = given.device.partition(":")[0].upper()
    mib = int(os.environ.get("HALF_OF_A_CARD_MIB", "30000"))
    limit = None if kind == "CPU" else mib
    for physical in tf.config.list_physical_devices(kind)[:1]:
        tf.config.set_logical_device_configuration(
            physical,
            [tf.config.LogicalDeviceConfiguration(memory_limit=limit)] * 2,
        )


def places(devices, given):
    """The devices of a case, where the program runs on `given.device`."""
    kind = given.device.rpartition(":")[0]
    others = {
        "one": [],
        "two": [f"{kind}:1"],
        "CPU": ["CPU:1" if kind.upper() == "CPU" else "CPU:0"],
    }
    return [given.device, *others[devices]]


def images(device, count, shape, classes):
    """A batch that is on the device already, where a step finds it."""
    rng = np.random.default_rng(0)
    with tf.device(device):
        x = tf.constant(rng.normal(size=(count, *shape)).astype("float32"))
        y = tf.constant(rng.integers(0, classes, count))
        return tf.identity(x), tf.identity(y)


def turns(runs, repeats, warm=5):
    """Median seconds of functions that take turns, and ratios to the first.

    Ratios are taken within a turn. A function returns when its result is there.
    """
    times = [[] for _ in runs]
    for turn in range(repeats + warm):
        for k in range(len(runs)):
            i = (turn + k) % len(runs)
            begin = time.perf_counter()
            runs[i]()
            if turn >= warm:
                times[i].append(time.perf_counter() - begin)
    return [statistics.median(each) for each in times], [
        statistics.median(a / b for a, b in zip(each, times[0], strict=True))
        for each in times
    ]


def environment(device):
    """What figures have to be read with."""
    gpu = machines.kind_of(device) == "GPU"
    return {
        "device": machines.model(device),
        "driver": machines.card_of(device).driver if gpu else "",
        "kernels": ops.build_report().cuda,
        "tensorflow": tf.__version__,
        "host": machines.processor(),
    }


def told(row):
    """The row, which is printed at once: time on a card may run out."""
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def show(given, device, rows):
    """Prints rows, mappings of like keys, with the environment."""
    about = environment(device)
    if given.json:
        print(json.dumps({"environment": about, "rows": rows}))
        return
    table = rich.table.Table(
        *rows[0], title=", ".join(map(str, about.values()))
    )
    for row in rows:
        table.add_row(
            *(
                f"{v:.4g}" if isinstance(v, float) else str(v)
                for v in row.values()
            )
        )
    rich.console.Console().print(table)
