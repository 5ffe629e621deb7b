"""Kills the chief in each way of use; `convpar launch` starts it again.

    python benchmarks/faults/killed.py --output killed.jsonl
    python benchmarks/faults/killed.py --table killed.jsonl

A chief and two workers on this machine. The program fits, evaluates, predicts
and saves, and kills itself in each; started again, it goes on at its last copy
as users' programs would: `fit` from `Elastic`'s, the rest from saved weights.
"""

import argparse
import hashlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
WAYS = ("filters", "samples", "replicas")
MODES = ("fit", "evaluate", "predict", "save")
# Of a save, which takes as long, before its process is killed.
SAVED = 0.3
LIMIT_S = 300


class State:
    """What outlives the program: a file."""

    def __init__(self, folder):
        self.path = pathlib.Path(folder) / "state.json"
        self.found = {"done": {}, "killed": None, "seconds": {}}
        if self.path.exists():
            self.found = json.loads(self.path.read_text())

    def write(self):
        """Writes it whole, or not."""
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.found))
        new.replace(self.path)

    def kill(self, mode, after_s=0.0):
        """This process ends, now or soon, if it has not yet in that mode."""
        if mode in self.found["seconds"]:
            return
        self.found["seconds"][mode] = None
        self.found["killed"] = time.time()
        self.write()
        if after_s:
            threading.Timer(after_s, _end).start()
        else:
            _end()

    def goes_on(self, mode):
        """A step of that mode is made, after it was killed in it."""
        if self.found["seconds"].get(mode, 0) is None:
            took_s = time.time() - self.found["killed"]
            self.found["seconds"][mode] = took_s
            self.write()


def _end():
    os.kill(os.getpid(), signal.SIGKILL)


def program(way, folder):
    """The chief's, from wherever it was."""
    sys.path.insert(0, str(HERE))
    import keras
    import numpy as np
    from chief import AT
    from chief import BATCH
    from chief import data
    from chief import fits
    from chief import network

    import tf_convpar as convpar

    state, folder = State(folder), pathlib.Path(folder)
    done = state.found["done"]

    class Killed(keras.callbacks.Callback):
        """Kills the process in one step, and says when the next was made."""

        def __init__(self, mode):
            super().__init__()
            self.mode, self.epoch, self.took = mode, 1, []

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def begin(self, batch, logs=None):
            self.start = time.perf_counter()
            if batch == AT and self.epoch == 1:
                state.kill(self.mode)

        def end(self, batch, logs=None):
            self.took.append(time.perf_counter() - self.start)
            state.goes_on(self.mode)

        on_train_batch_begin = on_test_batch_begin = begin
        on_train_batch_end = on_test_batch_end = end
        on_predict_batch_begin, on_predict_batch_end = begin, end

    strategy = convpar.ConvParallelStrategy()
    with strategy.scope():
        model = network()
        if way != "replicas":
            split = {"split": way, "shards": (1, 1, 1)}
            model = convpar.parallelize(
                model, {"first": split, "second": split}
            )
    workers = [d for d in strategy.devices if "worker" in d]
    x, y = data()
    options = {"batch_size": BATCH, "verbose": 0}
    made, own = model, [convpar.callbacks.Elastic(folder / "own", every=1e-3)]
    if way == "replicas":
        made = convpar.replicas.SyncEASGD(model, devices=workers)
        own = [keras.callbacks.BackupAndRestore(folder / "own")]
    weights = folder / "after.weights.h5"
    if "fit" not in done:
        killed = Killed("fit")
        fits(made, 3, [*own, killed])
        model.save_weights(weights)
        done["fit"] = statistics.median(killed.took)
        state.write()
    model.load_weights(weights)
    own = own if way != "replicas" else []
    if "evaluate" not in done:
        killed = Killed("evaluate")
        done["evaluate"] = made.evaluate(
            x, y, callbacks=[*own, killed], **options
        )
        state.write()
    if "predict" not in done:
        killed = Killed("predict")
        outputs = made.predict(x, callbacks=[*own, killed], **options)
        done["predict"] = outputs.tolist()
        state.write()
    # Not half a file, whenever it is killed.
    path = folder / "saved.keras"
    model.save(path)
    start = time.perf_counter()
    model.save(path)
    state.kill("save", SAVED * (time.perf_counter() - start))
    model.save(path)
    state.goes_on("save")
    saved = keras.saving.load_model(path)
    numbers = [*saved.get_weights(), np.asarray(done["predict"])]
    out = {
        "way": way,
        "seconds": state.found["seconds"],
        "step_s": done["fit"],
        "left": sorted(os.listdir(folder)),
        "numbers": hashlib.sha256(
            b"".join(a.astype("float32").tobytes() for a in numbers)
        ).hexdigest(),
    }
    print(json.dumps(out), flush=True)


def run(way, calm=False):
    """`convpar launch` and its tasks, until all is done.

    Args:
        way: How the model is spread.
        calm: Whether nobody is killed.
    """
    launch = [sys.executable, "-m", "tf_convpar", "launch", "-n", "3"]
    with tempfile.TemporaryDirectory() as folder:
        state = State(folder)
        state.found["seconds"] = dict.fromkeys(MODES, 0.0) if calm else {}
        state.write()
        done = subprocess.run(
            [
                *launch,
                *("--restarts", "4", "--threads", "1"),
                *(__file__, "--program", way, folder),
            ],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env=os.environ | {"PYTHONPATH": str(HERE.parents[1])},
        )
    lines = done.stdout.splitlines()
    named = done.stderr.count("chief ended with signal SIGKILL")
    if done.returncode:
        raise SystemExit("\n".join(lines[-30:]) + done.stderr[-2000:])
    start = "[chief] "
    found = next(x for x in lines if x.startswith(start + "{"))
    return json.loads(found[len(start) :]) | {"named": named}


def table(rows):
    """Markdown: seconds from the kill to the next step, or the saved file."""
    lines = [["spread by", *MODES, "weights and predictions"]]
    lines.append(["---"] * len(lines[0]))
    for row in rows:
        took = [f"{row['seconds'][mode]:.1f} s" for mode in MODES]
        lines.append([row["way"], *took, "equal" if row["same"] else "differ"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", help="one line of JSON for each program")
    parser.add_argument("--table", help="prints the table of such a file")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--program", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.program:
        program(*given.program)
        return
    if given.table:
        text = pathlib.Path(given.table).read_text()
        print(table([json.loads(line) for line in text.splitlines()]))
        return
    rows = []
    for way in given.ways:
        print(way, file=sys.stderr)
        found, calm = run(way), run(way, calm=True)
        found["same"] = found["numbers"] == calm["numbers"]
        rows.append(found)
        with open(given.output, "a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
