"""`Timeline` in `fit`, and `convpar trace` of a training that runs."""

import json
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from processes import CONVPAR
from processes import kill_tree
from processes import read_until
from processes import run
from processes import start
from recordings import UntilRecorded
from replica_cases import data
from replica_cases import network

import tf_convpar as convpar
from tf_convpar import timeline
from tf_convpar.cluster.local_cluster import local_workers

# Prints where its cluster is, and learns until it is told to end.
TRAINS = """
import os, keras, numpy as np
import tf_convpar as convpar

strategy = convpar.ConvParallelStrategy()
with strategy.scope():
    model = keras.Sequential([
        keras.Input((16, 16, 3)),
        keras.layers.Conv2D(12, 3),
        keras.layers.Conv2D(12, 3),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True))
    model = convpar.parallelize(model, "equal")
x, y = np.ones((32, 16, 16, 3), "float32"), np.arange(32) % 10
model.train_on_batch(x, y)
print("training", flush=True)
while True:
    model.train_on_batch(x, y)
"""


class Pauses(keras.callbacks.Callback):
    """Some time between steps; after one of them, something is noted."""

    def __init__(self, pause_s=0.02):
        super().__init__()
        self.pause_s, self.count = pause_s, 0

    def on_train_batch_end(self, batch, logs=None):
        start_s = time.time()
        time.sleep(self.pause_s)
        self.count += 1
        if self.count == 8:
            timeline.note("a pause", start_s)


def span(event):
    return event["ts"], event["ts"] + event["dur"]


def tasks_of(file):
    events = json.loads(file.read_text())["traceEvents"]
    return {
        e["args"]["name"] for e in events if e.get("name") == "process_name"
    }


@pytest.mark.alone  # It records for a second: steps must not last.
def test_a_training_is_traced_while_it_runs(tmp_path):
    with local_workers(1, threads=1) as local:
        program = [sys.executable, "-c", TRAINS]
        chief = start(program, TF_CONFIG=local.tf_config())
        try:
            read_until(chief, "training")
            line = [*CONVPAR, "trace", "--seconds", "1", "--json", "-o"]
            code, output = run(
                [*line, tmp_path / "new/line"], TF_CONFIG=local.tf_config()
            )
        finally:
            kill_tree(chief)
    assert code == 0, output
    found = json.loads(output[output.index("{\n") :])
    assert found["spans"] > 100
    png, chrome = found["files"]
    assert len(tasks_of(tmp_path / "new/line.json")) == 2
    assert chrome == str(tmp_path / "new/line.json")
    with Image.open(png) as image:
        assert image.width > 1000


def test_trace_says_what_is_missing(tmp_path):
    code, output = run([*CONVPAR, "trace"])
    assert code == 2 and "Expected TF_CONFIG" in output
    config = {
        "cluster": {"chief": ["localhost:1"], "worker": ["localhost:2"]},
        "task": {"type": "chief", "index": 0},
    }
    code, output = run(
        [*CONVPAR, "trace", "-o", tmp_path / "x"], TF_CONFIG=json.dumps(config)
    )
    assert code == 1 and "chief" in output and "UNAVAILABLE" in output
    assert not list(tmp_path.iterdir())


@pytest.mark.alone
def test_steps_of_fit_are_drawn(strategy, tmp_path):
    with strategy.scope():
        model = convpar.parallelize(network(), "equal")
    x, y = data()
    lines = convpar.callbacks.Timeline(tmp_path / "line", after=3, steps=9)
    timeline.note("of an earlier fit")
    callbacks = [lines, Pauses(), UntilRecorded(lines)]
    model.fit(x, y, batch_size=4, epochs=1000, verbose=0, callbacks=callbacks)
    names = tasks_of(tmp_path / "line.json")
    assert names == {"localhost 0, CPU", "fit"}
    events = json.loads((tmp_path / "line.json").read_text())["traceEvents"]
    steps = [span(e) for e in events if e.get("cat") == "step"]
    assert len(steps) == callbacks[1].count
    # Clocks agree: what convolves is in a step, and not in a pause.
    works = [span(e) for e in events if "convolution" in e.get("cat", "")]
    assert works
    for begin, end in works:
        assert any(b < begin and end < e for b, e in steps)
    # Noted after the eighth step, and in no other `fit`.
    ((begin, end),) = (
        span(e) for e in events if e.get("cat") == timeline.CHANGES
    )
    assert steps[7][1] < begin < end < steps[8][0]
    with Image.open(tmp_path / "line.png") as image:
        # Something is drawn in colour.
        colours = np.asarray(image.convert("RGB"), int)
        assert (np.ptp(colours, axis=-1) > 50).any()


@pytest.mark.parametrize(("two", "others"), [(0.15, 0.15), (0.0, 0.6)])
def test_steps_are_recorded_however_far_apart(strategy, tmp_path, two, others):
    """Pauses of other callbacks, from the first on and those that come late."""
    with strategy.scope():
        model = convpar.parallelize(network(), "equal")
    x, y = data(4 * 1000)
    pause = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: time.sleep(
            two if batch < 2 else others
        )
    )
    lines = convpar.callbacks.Timeline(tmp_path / "line", after=3, steps=2)
    callbacks = [lines, pause, UntilRecorded(lines)]
    model.fit(x, y, batch_size=4, verbose=0, callbacks=callbacks)
    events = json.loads((tmp_path / "line.json").read_text())["traceEvents"]
    times = [span(e) for e in events if e.get("cat") == "step"]
    works = [span(e) for e in events if "convolution" in e.get("cat", "")]
    # In which of the steps convolutions were seen.
    assert len({t for t in times for w in works if t[0] < w[0] < t[1]}) >= 2


def test_what_cannot_be_recorded_ends_no_training(strategy, tmp_path):
    with strategy.scope():
        model = convpar.parallelize(network(), "equal")
    x, y = data()
    short = convpar.callbacks.Timeline(tmp_path / "line", after=1000)
    with pytest.warns(RuntimeWarning, match=r"No timeline in .*1000 before"):
        model.fit(x, y, verbose=0, callbacks=[short])
    with pytest.raises(ValueError, match="scope of a ConvParallelStrategy"):
        network().fit(x, y, verbose=0, callbacks=[short])
    for wrong in ({"steps": 0}, {"after": 0.5}):
        with pytest.raises(ValueError, match="1 or more. Received"):
            convpar.callbacks.Timeline(**wrong)


def test_something_else_that_records_ends_no_training(strategy, tmp_path):
    with strategy.scope():
        model = convpar.parallelize(network(), "equal")
    line = convpar.callbacks.Timeline(tmp_path / "line", after=1)
    tf.profiler.experimental.start(str(tmp_path))
    try:
        with pytest.warns(RuntimeWarning, match="No timeline.*profiler"):
            model.fit(*data(), verbose=0, callbacks=[line])
    finally:
        tf.profiler.experimental.stop(save=False)
