"""`convpar algorithms`."""

import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from choices import forget
from click.testing import CliRunner
from test_cli import run_json

from tf_convpar.cli import _one_device
from tf_convpar.cli import algorithms
from tf_convpar.cli.algorithms import PASSES


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A file with two equal convolutions, and one of dilated single pixels."""
    monkeypatch.setenv("TF_CONVPAR_CACHE", str(tmp_path))
    layers = keras.layers
    network = keras.Sequential(
        [
            layers.Input((14, 14, 32)),
            layers.Conv2D(32, 3, padding="same", name="one"),
            layers.Conv2D(32, 3, padding="same", name="two"),
            layers.Conv2D(32, 1, dilation_rate=2, name="dilated"),
        ]
    )
    network.save(tmp_path / "model.keras")
    return str(tmp_path / "model.keras")


@pytest.mark.slow
def test_choices_of_a_model(model, tmp_path, monkeypatch):
    code, report = run_json(
        "algorithms", model, "--batch=6", "--threads=1", "--json"
    )
    assert code == 0
    assert (report["model"], report["batch"]) == (model, 6)
    same, dilated = report["convolutions"]
    assert same["convolution"] == "14x14x32 -> 32, 3x3 same"
    assert same["layers"] == ["one", "two"]
    assert same["geometry"]["window"] == [3, 3]
    assert list(same["passes"]) == list(PASSES)
    for which in PASSES:
        assert dilated["passes"][which]["rule"] == "strides or dilation"
        record = same["passes"][which]
        candidates = {c["name"]: c for c in record["candidates"]}
        assert len(candidates) > 1
        total = report["totals"][which]
        assert total["direct_ms"] == pytest.approx(
            2 * candidates["direct"]["time_ms"]
        )
        assert total["chosen_ms"] == pytest.approx(
            2 * candidates[record["chosen"]]["time_ms"]
        )
    # Times of the batch, which need not have run as a whole.
    assert same["images"] == 6
    total = report["totals"]["all"]
    assert total["gain"] == total["direct_ms"] / total["chosen_ms"]

    # Of whole steps too.
    step = report["step"]
    assert step["keras_ms"] > 0
    assert step["auto_ms"] > 0
    assert 0.05 < step["gain"] < 20

    # What this process shows next is read, not measured: it has its own
    # threads, and says that it has as many.
    written = (tmp_path / "algorithms.json").read_bytes()
    forget()
    monkeypatch.setattr(
        tf.config.threading, "get_intra_op_parallelism_threads", lambda: 1
    )
    result = CliRunner().invoke(
        algorithms.command, [model, "--batch=6"], env={"COLUMNS": "80"}
    )
    assert "A training step on this machine alone: " in result.output
    assert result.exit_code == 0, result.output
    output = result.output
    assert "14x14x32 -> 32, 3x3 same (2 layers)" in output
    assert "direct: strides or dilation" in output
    # Nothing is cut short.
    assert "…" not in output
    assert max(map(len, output.splitlines())) <= 80
    for candidate in same["passes"]["forward"]["candidates"]:
        assert re.search(rf"^  {candidate['name']} ", output, re.MULTILINE)
    assert output.count("chosen") >= len(PASSES)
    time = same["passes"]["forward"]["candidates"][0]["time_ms"]
    assert f"{time:.2f}" in output
    assert (tmp_path / "algorithms.json").read_bytes() == written


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["ResNet51"], 2, "Expected MODEL to be a .keras file or one of"),
        (["no.keras"], 2, "Received: no.keras, which is not there"),
        (["{model}", "--image=9"], 2, "Received: --image 9"),
        (["{other}"], 2, "other.keras"),
        (["{model}", "--passes=back"], 2, "Expected some of forward"),
        (["ResNet50", "--image=8"], 2, "at least 32x32"),
    ],
)
def test_what_it_cannot_use(arguments, code, message, model, tmp_path):
    other = tmp_path / "other.keras"
    other.write_text("no model")
    result = CliRunner().invoke(
        algorithms.command,
        [a.format(model=model, other=other) for a in arguments],
    )
    assert result.exit_code == code
    assert message in result.output
    assert "Traceback" not in result.output


def test_bad_cap(model, monkeypatch):
    monkeypatch.setenv("TF_CONVPAR_WORKSPACE_MIB", "much")
    result = CliRunner().invoke(algorithms.command, [model])
    assert result.exit_code == 2
    assert "TF_CONVPAR_WORKSPACE_MIB" in result.output


def test_one_pass_of_a_model_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONVPAR_CACHE", str(tmp_path))
    # All but the gradients of a network of 1x1 and depthwise convolutions.
    result = CliRunner().invoke(
        algorithms.command,
        ["MobileNet", "--image=32", "--batch=1", "--passes=forward", "--json"],
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert set(report["totals"]) == {"forward", "all"}
    assert report["step"] is None
    names = [n for c in report["convolutions"] for n in c["layers"]]
    assert names[:2] == ["conv1", "conv_pw_1"]


def test_a_step_of_several_inputs_and_outputs_leaves_the_model_as_it_was():
    """The sides have models of their own, whatever the user's has."""
    layers = keras.layers
    image, word = layers.Input((8, 8, 2)), layers.Input((3,), dtype="int32")
    seen = layers.Conv2D(3, 3, activation="relu")(image)
    read = layers.Flatten()(layers.Embedding(5, 2)(word))
    model = keras.Model(
        [image, word], [layers.Flatten()(seen), layers.Dense(1)(read)]
    )
    before = [np.array(w) for w in model.get_weights()]
    said = []
    found = _one_device.step(model, 2, said.append)
    assert found["keras_ms"] > 0
    assert said[-1] == "steps, round 5 of 5"
    assert not model.compiled
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
