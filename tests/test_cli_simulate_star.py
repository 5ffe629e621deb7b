"""`convpar simulate --method star`."""

import csv
import json

import pytest
from click.testing import CliRunner
from test_cli import run_json

from tf_convpar.cli.simulate import SWEEPS
from tf_convpar.cli.simulate import command
from tf_convpar.papers import star_simulation
from tf_convpar.papers.star_simulation import describe
from tf_convpar.planner.star import network

DEVICES = "--devices=2xcpu:100GFLOPS,1xgpu:1TFLOPS"


def invoke(*arguments):
    return CliRunner().invoke(command, ["--method=star", *arguments])


def failure(*arguments):
    """The message of a command that fails, on one line."""
    result = invoke(*arguments)
    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit), result.exception
    assert "Error: " in result.output
    return " ".join(result.output.split())


@pytest.fixture
def file(tmp_path):
    calibration = describe(network((8, 16), 4), "3xcpu:1GFLOPS", "1Gbit")
    calibration.save(tmp_path / "cluster.json")
    return str(tmp_path / "cluster.json")


def test_json_of_a_description():
    code, report = run_json(
        "simulate", "--method", "star", DEVICES, "--link=10Gbit",
        "--conv-share=0.8",
        "--kernels=50:500", "--batch=32", "--values=1,3", "--json",
    )  # fmt: skip
    assert code == 0
    calibration = describe(
        network((50, 500), 32),
        "2xcpu:100GFLOPS,1xgpu:1TFLOPS",
        "10Gbit",
        conv_share=0.8,
    )
    expected = star_simulation.simulate(
        calibration, "devices", [1, 3]
    ).to_dict()
    assert report == json.loads(json.dumps(expected))
    assert [row["value"] for row in report["rows"]] == [1, 3]
    assert report["rows"][1]["speedup"] > 1


def test_the_sweeps_are_the_planners():
    assert (*star_simulation.SWEEPS,) == SWEEPS


@pytest.mark.parametrize(
    "sweep, values, labels",
    [
        ("devices", "1,2", [1, 2]),
        ("bandwidth", "100Mbit, 1Gbit", [12.5e6, 125e6]),
        ("batch", "8,16", [8, 16]),
        ("kernels", "4:8,8:16", ["4:8", "8:16"]),
        ("heterogeneity", "1,2.5", [1, 2.5]),
    ],
)
def test_values(sweep, values, labels):
    result = invoke(
        DEVICES, "--kernels=8:16", "--sweep", sweep, "--values", values,
        "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [row["value"] for row in rows] == labels


def test_a_file_of_a_calibration(file):
    result = invoke(file, "--values=3,5", "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [row["devices"] for row in rows] == [3, 5]


def test_table_csv_and_picture(file, tmp_path):
    result = invoke(
        file, "--values=1,2", "--csv", str(tmp_path / "rows.csv"), "--png",
        str(tmp_path / "rows.png"), "--watts=cpu=10", "--watts=cpu:1=30",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "Ideal" in result.output
    assert "Joules" in result.output
    with open(tmp_path / "rows.csv", newline="") as opened:
        one, two = csv.DictReader(opened)
    assert float(one["joules"]) == pytest.approx(10 * float(one["step_s"]))
    assert float(two["joules cpu:1"]) > 0
    assert (tmp_path / "rows.png").stat().st_size > 1000


def test_power_of_a_name_and_of_one_device(file):
    result = invoke(
        file, "--values=3", "--watts=cpu=10", "--watts=cpu:1=30", "--json"
    )
    (row,) = json.loads(result.stdout)["rows"]
    joules = row["joules_by_device"]
    # cpu:1 and cpu:2 do about the same, at 30 and 10 watts.
    assert joules["cpu:1"] > 2 * joules["cpu:2"] > 0


def test_idle_power_of_a_description():
    code, report = run_json(
        "simulate", "--method=star", "--devices=2xcpu:1GFLOPS@10W", "--idle=1",
        "--values=2",
        "--kernels=8:16", "--json",
    )  # fmt: skip
    assert code == 0
    (row,) = report["rows"]
    assert row["joules"] == pytest.approx(2 * 10 * row["step_s"])


def test_presets():
    result = invoke("--presets", "--json")
    presets = json.loads(result.stdout)
    assert presets["jetson-nano"]["watts"] == 10
    assert "NVIDIA Jetson Nano" in presets["jetson-nano"]["source"]
    assert presets["a100"]["efficiency"] == 0.6
    assert "jetson-tx1" in invoke("--presets").output


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "Expected a calibration file or --devices"),
        (["--devices=cpu"], "Expected a rate, as in cpu:100GFLOPS"),
        ([DEVICES, "--link=1G"], "Expected the rate of a link"),
        ([DEVICES, "--latency=5"], "Expected a time"),
        ([DEVICES, "--rest=5"], "Expected a time"),
        ([DEVICES, "--kernels=a:b"], "Expected kernels of each convolution"),
        ([DEVICES, "--conv-share=2"], "Expected conv_share"),
        ([DEVICES, "--values=1,x"], "Expected whole numbers for a sweep"),
        ([DEVICES, "--values=0"], "Expected at least one device"),
        ([DEVICES, "--sweep=kernels", "--values=5"], "2 convolutions"),
        ([DEVICES, "--watts=cpu"], "Expected --watts NAME=W"),
        ([DEVICES, "--watts=tpu=5"], "Expected --watts for one of cpu:0"),
        ([DEVICES, "--watts=cpu=hot"], "Expected watts"),
        (["--devices=cpu:1GFLOPS"], "Expected two or more devices"),
        (["nowhere.json"], "does not exist"),
        ([DEVICES, "--values=1", "--csv=no/where.csv"], "mkdir -p no"),
    ],
)
def test_messages(arguments, message):
    assert message in failure(*arguments)


@pytest.mark.parametrize(
    "arguments", ["--model=VGG16", "--moments=own", "--output=plan.json"]
)
def test_options_of_whole_models(arguments):
    option = arguments.partition("=")[0]
    message = f"Expected {option} with --method model only"
    assert message in failure(DEVICES, arguments)


def test_a_file_says_its_devices_itself(file):
    assert "--batch without a file" in failure(file, "--batch=32")
    assert "--devices without a file" in failure(file, DEVICES)


def test_a_file_that_is_none(tmp_path):
    (tmp_path / "other.json").write_text("{}")
    assert "other.json" in failure(str(tmp_path / "other.json"))
