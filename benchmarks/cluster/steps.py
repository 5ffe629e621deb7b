"""What all systems share: arguments, data, the clock, and the line of JSON.

This module needs neither TensorFlow nor PyTorch: each system brings its own.
"""

import json
import os
import pathlib
import statistics
import sys
import time

# The variable with a folder in which programs that are timed at once meet.
MEET = "CONVPAR_BENCHMARK_MEET"


def add_arguments(parser):
    """Adds the arguments of every program that makes steps."""
    parser.add_argument("--model", required=True)
    parser.add_argument("--pixels", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument(
        "--together", type=int, default=1, help="programs timed at once"
    )


def data(options):
    """The one batch of the benchmark: images, and a class for each.

    For a U-Net there is a class for each pixel.
    """
    import numpy as np

    rng = np.random.default_rng(0)
    shape = (options.batch, options.pixels, options.pixels)
    x = rng.normal(size=(*shape, 3)).astype("float32")
    labels = shape if options.model == "unet" else options.batch
    return x, rng.integers(0, options.classes, labels)


def part(batch, parts, index):
    """The samples of one of `parts` replicas, as equal as can be."""
    counts = in_proportion(batch, [1] * parts)
    begin = sum(counts[:index])
    return slice(begin, begin + counts[index])


def in_proportion(samples, shares):
    """Samples of each node, by shares of a core; the rest to the last ones."""
    ends = [
        round(samples * sum(shares[: i + 1]) / sum(shares))
        for i in range(len(shares))
    ]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def meet(options):
    """Waits until as many programs have come so far as are timed at once."""
    if options.together == 1:
        return
    folder = pathlib.Path(os.environ[MEET])
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < options.together:
        time.sleep(0.01)


def measure(step, options):
    """Measures the times of steps, and this node's bytes meanwhile.

    `step` makes one step and returns its loss. The first steps trace, connect,
    and touch memory, so they are not timed. Their losses are kept, so that what
    systems compute can be compared.
    """
    losses, times = [], []
    for i in range(options.warm_up):
        losses.append(step())
        say(f"warm-up step {i + 1} of {options.warm_up}: loss {losses[-1]:.4f}")
    meet(options)
    before = network_bytes()
    for i in range(options.steps):
        begin = time.perf_counter()
        losses.append(step())
        times.append(time.perf_counter() - begin)
        say(f"step {i + 1} of {options.steps}: {times[-1]:.3f} s")
    after = network_bytes()
    low, middle, high = quartiles(times)
    return {
        "step_s": middle,
        "quartiles_s": [low, high],
        "steps": len(times),
        "losses": losses[:3],
        "received_mb": (after[0] - before[0]) / len(times) / 1e6,
        "sent_mb": (after[1] - before[1]) / len(times) / 1e6,
    }


def all_reduce_mb(parameters, replicas):
    """MB that each node must send, and receive, until all have all gradients.

    Gradients are float32, and go by reduce-scatter and all-gather (Patarasuk
    and Yuan 2009).
    """
    return 4 * parameters * 2 * (replicas - 1) / replicas / 1e6


def quartiles(times):
    if len(times) < 2:
        return [times[0]] * 3
    return statistics.quantiles(times, n=4, method="inclusive")


def network_bytes(interface="eth0", process="self"):
    """Bytes that a node's interface has received and sent, with headers.

    The node is that of a process.
    """
    with open(f"/proc/{process}/net/dev") as file:
        for line in file:
            name, _, counts = line.partition(":")
            if name.strip() == interface:
                words = counts.split()
                return int(words[0]), int(words[8])
    return 0, 0  # A program tried by hand, which is on no node of a cluster.


def say(text):
    """Prints one line of progress."""
    print(text, file=sys.stderr, flush=True)


def report(row):
    """Prints the line that the benchmark reads."""
    print(json.dumps(row), flush=True)
