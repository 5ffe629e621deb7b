"""`convpar simulate --ways`: which way to train, for each value of a sweep."""

import csv
import json

import keras
import pytest
from click.testing import CliRunner
from plans_of_graphs import MODELS
from plans_of_graphs import calibration_of

from tf_convpar import planner
from tf_convpar.cli.simulate import command
from tf_convpar.units import three_digits

DEVICES = "2xcpu:1GFLOPS,gpu:2GFLOPS"
RATES = "--values=1Mbit,1Gbit"


def invoke(*arguments, width=100):
    words = list(map(str, arguments))
    return CliRunner().invoke(command, words, env={"COLUMNS": str(width)})


@pytest.fixture
def model(tmp_path):
    MODELS["chain"]().save(tmp_path / "chain.keras")
    return tmp_path / "chain.keras"


@pytest.fixture
def measured(model, tmp_path):
    """A calibration as `convpar calibrate` writes it."""
    found = calibration_of(keras.models.load_model(model), ["a", "b"])
    found.facts["model"] = str(model)
    found.save(tmp_path / "calibration.json")
    return tmp_path / "calibration.json"


def test_a_row_for_each_way_and_a_column_for_each_rate(model, tmp_path):
    given = [f"--model={model}", f"--devices={DEVICES}", "--sweep=bandwidth"]
    given += [RATES, "--ways=all", "--every=10", "--wire=int8"]
    found = invoke(*given, "--json")
    assert found.exit_code == 0, found.output
    rows = json.loads(found.stdout)["rows"]
    loaded = keras.models.load_model(model)
    for row, rate in zip(rows, ("1Mbit", "1Gbit"), strict=True):
        cluster = planner.described(loaded, DEVICES, rate)
        ways = planner.compare(loaded, cluster, every=10, wire="int8")
        assert row["label"] == rate
        assert row["samples_per_s"] == {w.name: w.samples_per_s for w in ways}
        assert row["numbers"] == {w.name: w.numbers for w in ways}
        assert row["fastest"] == ways[0].name
    table = invoke(
        *given, f"--csv={tmp_path / 'rows.csv'}", f"--png={tmp_path / 'a.png'}"
    )
    assert table.exit_code == 0, table.output
    names = dict.fromkeys(n for row in rows for n in row["samples_per_s"])
    for name in names:
        (line,) = [
            line
            for line in table.stdout.splitlines()
            if line.startswith(f" {name} ")
        ]
        for row in rows:
            rate = row["samples_per_s"].get(name)
            star = "*" if name == row["fastest"] else ""
            assert rate is None or f" {star}{three_digits(rate)} " in line
    for text in ("Links", "1Mbit", "1Gbit", "own moments", "own steps"):
        assert text in table.stdout
    with open(tmp_path / "rows.csv", newline="") as opened:
        for row, line in zip(rows, csv.DictReader(opened), strict=True):
            for name, rate in row["samples_per_s"].items():
                assert float(line[f"samples_per_s {name}"]) == rate
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_some_ways(model):
    found = invoke(
        f"--model={model}", f"--devices={DEVICES}", "--sweep=devices",
        "--values=2,4", "--ways=DiLoCo, alone", "--json",
    )  # fmt: skip
    rows = json.loads(found.stdout)["rows"]
    assert [set(row["step_s"]) for row in rows] == [{"alone", "DiLoCo"}] * 2
    # Of one cluster, too.
    found = invoke(
        f"--model={model}", f"--devices={DEVICES}", "--ways=SyncSGD,groups",
        "--json",
    )  # fmt: skip
    ways = json.loads(found.stdout)["ways"]
    assert {way["method"] for way in ways} == {"SyncSGD", "SyncEASGD"}


def test_what_was_measured_on_other_links_and_machines(model, measured):
    loaded, calibration = keras.models.load_model(model), planner.load(measured)
    given = [measured, "--sweep=bandwidth", RATES, "--json"]
    rows = json.loads(invoke(*given).stdout)["rows"]
    expected = planner.sweep_ways(
        loaded, calibration, "bandwidth", [125e3, 125e6]
    )
    assert rows == json.loads(json.dumps(expected.to_dict()))["rows"]
    given += ["--speeds=1,0.5,0.25", "--latency=1ms"]
    found = json.loads(invoke(*given).stdout)
    cluster = planner.machines(calibration, [1, 0.5, 0.25], 1.0, 1e-3)
    expected = planner.sweep_ways(loaded, cluster, "bandwidth", [125e3, 125e6])
    assert found["rows"] == json.loads(json.dumps(expected.to_dict()))["rows"]
    assert "speeds 1,0.5,0.25" in found["about"]
    one = json.loads(
        invoke(measured, "--speeds=1,0.5", "--link=1kbit", "--json").stdout
    )
    assert [d["name"] for d in one["devices"]] == ["machine:0", "machine:1"]
    assert "SyncSGD" in {way["method"] for way in one["ways"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ways=SyncSDG"], "Expected ways among alone, split, SyncSGD"),
        (["--ways=all", "--every=0"], "Received: every=0, fragments=1"),
        (["--ways=all", "--wire=int2"], "int2"),
        (["--ways=all", "--n-push=2", "--n-fetch=3"], "n_fetch=3, n_push=2"),
        (["--ways=all", "--output=a.json"], "Received both"),
        (["--speeds=1,2"], "Expected --speeds with a calibration file"),
        (["--method=star", "--ways=all"], "--ways with --method model only"),
    ],
)
def test_messages(model, arguments, message):
    given = [f"--devices={DEVICES}", "--sweep=bandwidth", *arguments]
    if "--method=star" not in arguments:
        given.append(f"--model={model}")
    result = invoke(*given)
    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit), result.exception
    assert message in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices=cpu:1GFLOPS"], "Expected --devices without a calibration"),
        (["--link=1Gbit"], "Expected --link without a calibration"),
        (["--batch=3"], "Expected --batch without a calibration"),
        (["--speeds=fast"], "Expected speeds as numbers"),
        (["--speeds=1,-1"], "a speed above 0"),
    ],
)
def test_messages_of_what_was_measured(measured, arguments, message):
    result = invoke(measured, "--sweep=bandwidth", *arguments)
    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit), result.exception
    assert message in " ".join(result.output.split())
