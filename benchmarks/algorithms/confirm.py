"""Times the algorithms chosen for convolutions beside direct, after the choice.

The race that makes a choice favours algorithms that were lucky in it. So a
second measurement, in rounds of its own, is the one that is published. There is
a process for each number of threads, as TensorFlow takes that number only once.
"""

import argparse
import json
import os
import statistics
import sys
import time


def confirm(geometry, rounds, budget_s):
    """What was chosen for each pass, and median times of it and of direct."""
    import tensorflow as tf

    from tf_convpar.algorithms import _choose
    from tf_convpar.algorithms import race
    from tf_convpar.algorithms._names import named

    cpu = tf.config.list_logical_devices("CPU")[0].name
    records = _choose.consult(geometry)
    passes = {}
    for which, record in records.items():
        row = {"chosen": record.chosen}
        passes[which] = row
        if record.chosen == "direct":
            # Both are the very same op: there is nothing to time.
            continue
        both = [named("direct", geometry), named(record.chosen, geometry)]
        begin = time.perf_counter()
        runs = race.runners(both, geometry, which, cpu)
        direct, chosen = alternate(runs, rounds, budget_s)
        row["seconds"] = time.perf_counter() - begin
        row["direct_ms"] = statistics.median(direct) * 1e3
        row["chosen_ms"] = statistics.median(chosen) * 1e3
        row["speedup"] = statistics.median(
            a / b for a, b in zip(direct, chosen, strict=False)
        )
        row["rounds"] = len(chosen)
        for candidate in record.candidates:
            if candidate.name == record.chosen:
                row["error"] = candidate.error
                row["workspace_mib"] = candidate.workspace_bytes / 2**20
    return passes


def alternate(runs, rounds, budget_s):
    """Seconds of both runs in each round; there are at least three rounds."""
    times = [[], []]
    for run in runs:
        run()
    once = timed(runs[0], 1)
    repeats = max(1, min(20, int(2e-3 / once)))
    begin = time.perf_counter()
    while len(times[0]) < 3 or (
        len(times[0]) < rounds and time.perf_counter() - begin < 3 * budget_s
    ):
        order = (0, 1) if len(times[0]) % 2 else (1, 0)
        for i in order:
            times[i].append(timed(runs[i], repeats))
    return times


def timed(run, repeats):
    """Mean seconds of `repeats` runs."""
    begin = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - begin) / repeats


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--budget", type=float, default=1.0)
    options = parser.parse_args()
    os.sched_setaffinity(0, range(options.threads))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    from tf_convpar.algorithms._algorithm import Geometry

    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    for line in sys.stdin:
        fields = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in json.loads(line).items()
        }
        passes = confirm(Geometry(**fields), options.rounds, options.budget)
        print(json.dumps(passes), flush=True)


if __name__ == "__main__":
    main()
