"""`convpar calibrate --method star`: here, and on a cluster of processes."""

import json

import forks
import keras
import pytest
from processes import CONVPAR
from processes import environment
from processes import run

from tf_convpar.cluster.local_cluster import local_workers
from tf_convpar.planner import star as planner


@pytest.fixture
def model(tmp_path):
    network = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            keras.layers.Conv2D(32, 3, name="first"),
            keras.layers.Conv2D(48, 3, name="second"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(3),
        ]
    )
    network.compile("adam", "mse")
    network.save(tmp_path / "model.keras")
    return tmp_path / "model.keras"


def calibrate(model, *args, env=None):
    """Exit code and output; the cache is beside the model."""
    cache = {"TF_CONVPAR_CACHE": str(model.parent / "cache")}
    done = forks.run(
        [*CONVPAR[1:], "calibrate", "--method=star", model, *args],
        env=environment(COLUMNS="100") | (env or {}) | cache,
    )
    return done.returncode, done.stderr + done.stdout


@pytest.mark.slow
def test_a_cluster_and_what_comes_of_it(model, tmp_path):
    output = tmp_path / "calibration.json"
    with local_workers(1) as local:
        code, said = calibrate(
            model, "--batch=8", f"--output={output}", env=local.env()
        )
    assert code == 0, said
    found = planner.load(output)
    assert [d.name.split("/")[1] for d in found.devices] == [
        "job:chief",
        "job:worker",
    ]
    assert found.network.batch == 8 and found.network.slots == 2
    assert {(link.source, link.target) for link in found.links} == {
        (a.name, b.name)
        for a in found.devices
        for b in found.devices
        if a is not b
    }
    code, said = run([*CONVPAR, "plan", output, "--json"])
    assert code == 0, said
    layers = json.loads(said)["layers"]
    assert [sum(layer["shards"]) for layer in layers] == [32, 48]


@pytest.mark.slow  # test_cli_calibrate.py, too.
def test_given_rates_are_not_measured(model, tmp_path):
    code, said = calibrate(
        model, "--batch=8", "--throughput=100GFLOPS", "--json"
    )
    assert code == 0, said
    content = json.loads(said[said.index("{\n") :])
    (device,) = content["devices"]
    seconds = device["times"]["second"]["forward"][-1]
    operations = 2 * 8 * 12 * 12 * 9 * 32 * 48
    assert seconds == pytest.approx(operations / 100e9, rel=0.01)
    assert not any(tmp_path.rglob("*.json"))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        pytest.param(
            ["--throughput=often"],
            "Expected `throughput`",
            marks=pytest.mark.slow,  # test_planner_calibrate.py has it, too.
        ),
        pytest.param(
            ["--throughput=1GFLOPS,2GFLOPS"], "1 rates", marks=pytest.mark.slow
        ),
        (["--batch=0"], "--batch"),
    ],
)
def test_bad_arguments(model, args, message):
    code, said = calibrate(model, *args)
    assert code in (1, 2)
    assert message in said and "Traceback" not in said


def test_a_file_that_is_no_model(tmp_path):
    (tmp_path / "model.keras").write_text("no")
    code, said = calibrate(tmp_path / "model.keras")
    assert code in (1, 2) and "Traceback" not in said
    assert "model.keras" in said
