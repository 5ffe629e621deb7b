"""The chief of `run.py --program steps`: seconds of a step, by method.

Methods take turns. What an exchange adds is a step's time less that of the
same computing without one: of all replicas at once (`ParallelSGD`), or of one
where only one works at a time.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import chief
import keras
import networks

# Without an exchange.
ALONE, ONE = "ParallelSGD", "one replica"


class _Clock(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.ends = []

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append((batch, time.perf_counter()))

    def seconds(self):
        """Mean of the steps after the first."""
        (first, start), *_, (last, end) = self.ends[len(self.ends) // 5 :]
        return (end - start) / (last - first)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", default=list(chief.TABLE))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--chief-too", action="store_true")
    options = parser.parse_args()
    devices = chief.joined(options.chief_too)
    train, _ = networks.NETWORKS["lenet"][1]()
    methods = {ONE: chief.made(ALONE, 0, 0.01, devices[:1], options.at_once)}
    for kind in (ALONE, *options.methods):
        methods[kind] = chief.made(kind, 0, 0.01, devices, options.at_once)
    seconds = {kind: [] for kind in methods}
    for i in range(options.rounds + 1):
        for kind, method in methods.items():
            clock = _Clock()
            method.fit(
                *train,
                batch_size=options.batch,
                epochs=1,
                steps_per_epoch=options.steps,
                callbacks=[clock],
                verbose=0,
            )
            # The first round traces.
            if i:
                seconds[kind].append(clock.seconds())
    rows = []
    for kind, found in seconds.items():
        step = statistics.median(found)
        in_turn = hasattr(methods[kind], "report")
        alone = statistics.median(seconds[ONE if in_turn else ALONE])
        if kind in (ONE, ALONE):
            alone = step
        rows.append(
            {
                "method": kind,
                "replicas": len(methods[kind].devices),
                "step_s": step,
                "range_s": [min(found), max(found)],
                "computing_s": alone,
                "exchange": 1 - alone / step,
            }
        )
        print(
            f"{kind:16} {1e3 * step:7.1f} ms ({1e3 * min(found):.1f} to "
            f"{1e3 * max(found):.1f}), {1 - alone / step:.0%} exchange",
            flush=True,
        )
    with options.output.open("a") as file:
        file.write(json.dumps({"batch": options.batch, "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
