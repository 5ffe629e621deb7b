"""`convpar top` shows a training that runs; TensorBoard gets the same."""

import json
import os
import re
import sys

import keras
import numpy as np
import psutil
import pytest
import tensorflow as tf
from click.testing import CliRunner
from processes import kill_tree
from processes import read_until
from processes import start

import tf_convpar as convpar
from tf_convpar.cli.main import main
from tf_convpar.files import CACHE_FOLDER

TRAINS = """
import sys
import keras, numpy as np
import tf_convpar as convpar

strategy = convpar.ConvParallelStrategy()
with strategy.scope():
    model = keras.Sequential([
        keras.Input((32, 32, 3)), keras.layers.Conv2D(32, 3),
        keras.layers.Conv2D(32, 3), keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(10),
    ], name="learner")
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True))
    model = convpar.parallelize(model, "equal")
x, y = np.ones((64, 32, 32, 3), "float32"), np.arange(64) % 10
said = keras.callbacks.LambdaCallback(
    on_epoch_end=lambda epoch, logs: print("epoch", epoch, flush=True)
)
monitor = convpar.callbacks.Monitor(sys.argv[1], every=0.3)
model.fit(x, y, epochs=9999, verbose=0, callbacks=[monitor, said])
"""


def top(*arguments):
    done = CliRunner().invoke(main, ["top", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def scalars(folder):
    found = {}
    for file in folder.glob("events*"):
        for record in tf.data.TFRecordDataset(str(file)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                number = float(tf.make_ndarray(value.tensor))
                found.setdefault(value.tag, []).append((event.step, number))
    return found


@pytest.mark.slow
def test_a_training_of_three_processes(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path))
    assert "callbacks.Monitor()" in top()
    program = [sys.executable, "-c", TRAINS, tmp_path / "logs"]
    chief = start(program, TF_CONFIG=cluster.tf_config())
    try:
        read_until(chief, "epoch 30\n")
        (found,) = json.loads(top("--json"))
        screen = top("--once")
    finally:
        kill_tree(chief)
    assert found["model"] == "learner" and found["pid"] == chief.pid
    assert found["step"] > 20 and 1e-3 < found["step_s"] < 5
    assert 0 < found["logs"]["loss"] < 10
    names = [device["name"] for device in found["devices"]]
    assert names == ["chief 0 CPU:0", "worker 0 CPU:0", "worker 1 CPU:0"]
    for device in found["devices"]:
        assert 0.02 < device["busy"] <= 1
        # What the first convolution needs, and finds.
        assert device["received"] > 1e5 and device["sent"] > 1e5
    assert re.search(r"learner.*, process \d+: epoch \d+, step \d+", screen)
    for name in names:
        assert re.search(rf"{name} .*\d+%.*\d+%.*\d", screen), screen
    assert max(map(len, screen.splitlines())) <= 80
    # It was killed, and could not say that it ended.
    assert not psutil.pid_exists(chief.pid)
    assert "No training of yours" in top("--once")
    written = scalars(tmp_path / "logs")
    for name in ("step/seconds", "step/loss", "busy/worker_1_CPU_0"):
        steps = [step for step, _ in written[name]]
        assert len(steps) > 1 and steps == sorted(set(steps))
    busy, waiting = (
        written["busy/chief_0_CPU_0"],
        written["waiting/chief_0_CPU_0"],
    )
    for (_, one), (_, other) in zip(busy, waiting, strict=True):
        assert one + other == pytest.approx(1)


def test_what_has_ended_is_not_shown(strategy, tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path))
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones((4, 4), "float32")
    seen = []
    look = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(top("--json"))
    )
    monitor = convpar.callbacks.Monitor(every=1e-6)
    model.fit(x, x[:, :1], epochs=3, verbose=0, callbacks=[monitor, look])
    assert [json.loads(s)[0]["step"] for s in seen] == [1, 2, 3]
    assert json.loads(top("--json")) == []
    with pytest.raises(ValueError, match="`every` to be seconds"):
        convpar.callbacks.Monitor(every="soon")


GOOD = {
    "pid": os.getpid(),
    "began_s": 2e9,
    "written_s": 2e9,
    "model": "learner",
    "epoch": 1,
    "step": 7,
    "step_s": 0.5,
    "logs": {"loss": float("nan")},
    "devices": [
        {"name": "CPU:0", "busy": None, "received": 1, "sent": 2.5},
    ],
}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "3",
        "[" * 990 + "]" * 990,
        json.dumps(GOOD | {"devices": None}),
        json.dumps(GOOD | {"devices": [3]}),
        json.dumps(GOOD | {"devices": [{"name": "CPU:0"}]}),
        json.dumps(GOOD | {"pid": "7"}),
        json.dumps(GOOD | {"pid": -7}),
        json.dumps(GOOD | {"pid": 10**30}),
        json.dumps(GOOD | {"pid": None}),
        json.dumps(GOOD | {"began_s": "yesterday"}),
        json.dumps(GOOD | {"step_s": None}),
        json.dumps(GOOD | {"logs": {"loss": "high"}}),
        json.dumps(GOOD | {"logs": None}),
        json.dumps(GOOD | {"more": 1}),
        json.dumps({**GOOD, "pid": 1}),
    ],
)
def test_strange_files_are_no_trainings(text, tmp_path, monkeypatch):
    """And what one says of another process is not taken for that one's."""
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path))
    folder = tmp_path / "running"
    folder.mkdir()
    (folder / f"{os.getpid()}.json").write_text(json.dumps(GOOD))
    (folder / "1.json").write_text(json.dumps(GOOD | {"pid": 1}))
    for name in ("strange", 10**30):
        (folder / f"{name}.json").write_text(text)
    (folder / "folder.json").mkdir()
    found = json.loads(top("--json"))
    assert {one["pid"] for one in found} == {1, os.getpid()}
    assert {*found[0]} == {*GOOD}
    assert "learner, process" in top("--once")
    # Nobody else's was removed.
    assert (folder / "1.json").exists()


def test_a_folder_that_cannot_be_written_ends_no_training(
    tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path / "file"))
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((4, 4), "float32")
    monitor = convpar.callbacks.Monitor(every=1e-6)
    with pytest.warns(RuntimeWarning, match="will not see this training"):
        model.fit(x, x[:, :1], epochs=2, verbose=0, callbacks=[monitor])
