"""`convpar plan` of a star; `test_cli_plan.py` has whole models."""

import json

import pytest
from click.testing import CliRunner
from plans_of_graphs import MODELS
from plans_of_graphs import calibration_of
from star_cases import cluster
from star_cases import device_name
from test_cli import run_json

from tf_convpar import plans
from tf_convpar.cli.main import main
from tf_convpar.planner import star


@pytest.fixture
def files(tmp_path):
    """A folder with a calibration of two devices."""
    calibration = cluster([1.2e11, 6e10], rate=1.25e9)
    calibration.save(tmp_path / "cluster.json")
    return tmp_path


def convpar_plan(files, *args):
    """Exit code and output, in this process."""
    words = ["plan", files / "cluster.json", *args]
    done = CliRunner().invoke(
        main, list(map(str, words)), env={"COLUMNS": "100"}
    )
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.output


def test_plan(files):
    code, output = convpar_plan(
        files, "--output", files / "plan.json", "--png", files / "plan.png"
    )
    assert code == 0
    calibration = star.load(files / "cluster.json")
    plan = star.load_plan(files / "plan.json", calibration)
    assert plan == star.plan(calibration)
    for count in plan["conv2d_1"]:
        assert f" {count} │" in output
    assert "Predicted step " in output
    assert " times as fast as chief 0 CPU:0 alone" in " ".join(output.split())
    assert f"Written: {files / 'plan.json'}\n" in output
    assert (files / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_quantum(files):
    _, content = run_json(
        "plan", str(files / "cluster.json"), "--quantum=64", "--json"
    )
    kernels = content["layers"][1]["shards"]
    assert sum(kernels) == 1500
    assert sorted(n % 64 > 0 for n in kernels) == [False, True]


def test_json(files):
    code, content = run_json("plan", str(files / "cluster.json"), "--json")
    assert code == 0
    calibration = star.load(files / "cluster.json")
    assert content == json.loads(json.dumps(star.plan(calibration).to_dict()))


def test_existing_plan(files):
    convpar_plan(files, "--output", files / "plan.json")
    content = json.loads((files / "plan.json").read_text())
    content["layers"][1]["shards"] = [100, 1400]
    (files / "plan.json").write_text(json.dumps(content))
    code, output = convpar_plan(files, "--plan", files / "plan.json")
    assert code == 0
    assert "As given: 2 devices take " in output
    assert " 1400 │" in output

    content["layers"][1]["shards"] = [100, 1000]
    (files / "plan.json").write_text(json.dumps(content))
    code, output = convpar_plan(files, "--plan", files / "plan.json")
    assert code == 2
    assert output.startswith("Error: Expected 2 numbers of kernels")
    assert "[100, 1000], which sum to 1100" in output


def test_the_method_for_a_whole_model(tmp_path):
    """Its plan, and what an edited one takes, by a calibration of all."""
    model = MODELS["chain"]()
    model.save(tmp_path / "chain.keras")
    measured = calibration_of(model, list(map(device_name, range(2))), rate=1e9)
    measured.save(tmp_path / "cluster.json")
    given = (f"--model={tmp_path / 'chain.keras'}", "--method=star")
    code, output = convpar_plan(
        tmp_path, *given, "--quantum=2", f"--output={tmp_path / 'plan.json'}"
    )
    assert code == 0, output
    cluster = star.of_measurements(model, measured)
    plan = plans.load(tmp_path / "plan.json")
    assert plan == star.plan(cluster, 2)
    assert len(plan.used) > 1
    code, output = convpar_plan(
        tmp_path, *given, f"--plan={tmp_path / 'plan.json'}"
    )
    assert code == 0
    assert plan.reason in " ".join(output.split())
    code, output = convpar_plan(tmp_path, *given, "--moments=own")
    assert code == 2
    assert "Expected --moments" in output


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--quantum=0"], 2, "--quantum"),
        (["--quantum=2", "--plan={files}/cluster.json"], 2, "not both"),
        (["--plan={files}/none.json"], 2, "none.json' does not exist"),
        (["--plan={files}/cluster.json"], 2, "Error: Expected a plan: a file"),
        (
            ["--output={files}/no/plan.json"],
            2,
            "Expected a file in a folder that exists",
        ),
        (["--png={files}/plan.doc"], 2, "ormat 'doc'"),
    ],
)
def test_bad_arguments(files, args, code, message):
    found, output = convpar_plan(
        files, *[arg.format(files=files) for arg in args]
    )
    assert found == code
    assert message.format(files=files) in output
    assert "Traceback" not in output


def test_bad_calibration(files):
    file = files / "cluster.json"
    content = json.loads(file.read_text())
    content["devices"][1]["times"]["conv2d"]["forward"][2] = -1
    file.write_text(json.dumps(content))
    code, output = convpar_plan(files)
    assert code == 2
    assert output == (
        "Error: Expected a number, at least 0, at "
        f"devices[1].times.conv2d.forward[2] of {file}. Received: -1.\n"
    )


def test_no_memory(files):
    file = files / "cluster.json"
    content = json.loads(file.read_text())
    for device in content["devices"]:
        device["memory_bytes"] = 1000
    file.write_text(json.dumps(content))
    code, output = convpar_plan(files)
    assert code == 2
    assert output.startswith("Error: Expected devices that hold the kernels")
    assert f"{device_name(1)} has 1000 bytes" in output
