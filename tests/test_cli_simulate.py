"""`convpar simulate` of whole models."""

import csv
import json

import keras
import pytest
from click.testing import CliRunner
from plans_of_graphs import MODELS
from test_cli import run_json

from tf_convpar import planner
from tf_convpar import plans
from tf_convpar.cli.simulate import SWEEPS
from tf_convpar.cli.simulate import command
from tf_convpar.planner import work_keys
from tf_convpar.sharding import calls_of

DEVICES = "2xcpu:1GFLOPS,gpu:2GFLOPS"


def invoke(*arguments):
    return CliRunner().invoke(command, list(map(str, arguments)))


@pytest.fixture
def model(tmp_path):
    MODELS["chain"]().save(tmp_path / "chain.keras")
    return tmp_path / "chain.keras"


def test_plan_table_and_picture(model, tmp_path):
    result = invoke(
        "--model", model, "--devices", DEVICES, "--link=100Mbit", "--batch=16",
        "--output", tmp_path / "plan.json", "--png", tmp_path / "plan.png",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    plan = plans.load(tmp_path / "plan.json")
    loaded = keras.models.load_model(model)
    expected = planner.simulate(loaded, DEVICES, "100Mbit", batch_size=16)
    assert plan == expected
    assert len(plan.used) > 1
    rows = [row for row in result.stdout.splitlines() if " conv2d_1 " in row]
    assert len(rows) == 1
    assert f" {plan.way('conv2d_1')} " in rows[0]
    assert "times as fast as" in " ".join(result.stdout.split())
    assert f"Written: {tmp_path / 'plan.png'}" in result.stdout
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow  # README.md does it.
def test_an_application_by_name():
    code, content = run_json(
        "simulate", "--model=MobileNet", "--image=64", "--batch=4",
        "--devices=2xcpu:100GFLOPS", "--link=10Gbit", "--latency=1us",
        "--json",
    )  # fmt: skip
    assert code == 0
    assert [d["name"] for d in content["devices"]] == ["cpu:0", "cpu:1"]
    small = keras.applications.MobileNet(weights=None, input_shape=(64, 64, 3))
    fingerprint = work_keys.fingerprint(calls_of(small))
    assert content["fingerprint"] == fingerprint
    # The first and the last, and thirteen depthwise and pointwise ones.
    assert len(content["layers"]) == 28
    assert {layer["split"] for layer in content["layers"]} <= {
        "samples",
        "filters",
    }
    assert content["prediction"]["step_s"] < content["devices"][0]["single_s"]


def test_wire_dtype_and_latency(model):
    def received(*arguments):
        result = invoke(
            "--model", model, "--devices", DEVICES, "--link=1Gbit", "--json",
            *arguments,
        )  # fmt: skip
        prediction = json.loads(result.stdout)["prediction"]
        return sum(prediction["sent_bytes"].values()), prediction["step_s"]

    full, seconds = received()
    half, _ = received("--wire-dtype=bfloat16")
    assert 0 < half < full
    _, slower = received("--latency=1ms")
    assert slower > seconds
    _, own = received("--latency=1ms", "--moments=own")
    assert own < slower


def test_the_sweeps_are_the_planners():
    assert (*planner.SWEEPS,) == SWEEPS[:3]


@pytest.mark.parametrize(
    ("sweep", "values", "expected"),
    [
        ("devices", "1,2,4", [1, 2, 4]),
        ("bandwidth", "1Mbit, 1Gbit", [125e3, 125e6]),
        ("batch", "8,16", [8, 16]),
    ],
)
def test_sweeps(model, tmp_path, sweep, values, expected):
    given = ["--model", model, "--devices", DEVICES, "--sweep", sweep]
    result = invoke(*given, "--values", values, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["sweep"] == sweep
    rows = report["rows"]
    assert [row["value"] for row in rows] == expected
    for row in rows:
        assert row["speedup"] == pytest.approx(row["single_s"] / row["step_s"])
        assert sum(row["ways"].values()) == 3
    table = invoke(*given, "--values", values, "--csv", tmp_path / "rows.csv")
    with open(tmp_path / "rows.csv", newline="") as opened:
        for row, line in zip(rows, csv.DictReader(opened), strict=True):
            assert float(line["step_s"]) == row["step_s"]
            for way, number in row["ways"].items():
                assert int(line[f"ways {way}"]) == number
    assert f"chain, batch 32: {DEVICES}, 1Gbit" in table.stdout
    lines = table.stdout.splitlines()[-len(rows) :]
    for row, line in zip(rows, lines, strict=True):
        assert f"{row['used']}/{row['devices']}" in line
        assert f"{row['speedup']:.2f}" in line
        assert f"{row['received_bytes'] / 1e6:.1f}" in line


def test_presets():
    presets = json.loads(invoke("--presets", "--json").stdout)
    assert presets["jetson-nano"]["watts"] == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Received no --model"),
        (["--model=VGG16"], "Received no --devices"),
        (["--model=VGG61", "--devices=cpu:1GFLOPS"], "MODEL to be a .keras"),
        (["--model=a.keras", "--devices=cpu:1GFLOPS"], "a.keras, which is not"),
        (
            ["--model=MobileNetV3Small", "--devices=cpu:1GFLOPS"],
            "Expected --image, such as --image 224",
        ),
        (["--model=VGG16", "--devices=cpu"], "a rate, as in cpu:100GFLOPS"),
        (
            ["--model=VGG16", "--devices=cpu:1GFLOPS", "--link=1G"],
            "Expected the rate of a link",
        ),
        (
            ["--model=VGG16", "--devices=cpu:1GFLOPS", "--values=1"],
            "Expected --values with --sweep",
        ),
        (
            [
                "--model=VGG16",
                "--devices=cpu:1GFLOPS",
                "--sweep=devices",
                "--values=two",
            ],
            "Expected whole numbers for a sweep over devices",
        ),
        (
            [
                "--model=VGG16",
                "--devices=cpu:1GFLOPS",
                "--sweep=devices",
                "--png=x.png",
            ],
            "Received both",
        ),
        (
            ["--model=VGG16", "--conv-share=0.5"],
            "Expected --conv-share with --method star only",
        ),
        (
            ["--model=VGG16", "--devices=cpu:1GFLOPS", "--csv=x.csv"],
            "Expected --csv with --sweep",
        ),
    ],
)
def test_messages(arguments, message):
    result = invoke(*arguments)
    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit), result.exception
    assert message in " ".join(result.output.split())
