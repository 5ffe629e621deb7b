"""`convpar calibrate` and `convpar plan` of whole models."""

import json

import forks
import keras
import pytest
from click.testing import CliRunner
from plans_of_graphs import calibration_of
from processes import CONVPAR
from processes import environment

from tf_convpar import planner
from tf_convpar import plans
from tf_convpar.cli.main import main
from tf_convpar.cluster.local_cluster import local_workers
from tf_convpar.planner import work_keys
from tf_convpar.sharding import calls_of

PASSES = ("forward", "backward")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model, and its calibration on two processes."""
    folder = tmp_path_factory.mktemp("calibrated")
    conv = keras.layers.Conv2D
    network = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            conv(32, 3, padding="same", name="first"),
            conv(32, 3, padding="same", name="second"),
            conv(32, 3, padding="same", name="third"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(3),
        ]
    )
    network.compile("adam", "mse")
    network.save(folder / "model.keras")
    args = [folder / "model.keras", "--batch=8"]
    args += [f"--output={folder / 'calibration.json'}"]
    with local_workers(1) as local:
        done = forks.run(
            [*CONVPAR[1:], "calibrate", *args],
            env=environment() | settings(folder) | local.env(),
            timeout=280,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "said").write_text(done.stdout + done.stderr)
    return folder


def settings(folder):
    return {"TF_CONVPAR_CACHE": str(folder / "cache"), "COLUMNS": "100"}


def convpar(folder, *args):
    """Exit code and output, in this process, which has TensorFlow already."""
    done = CliRunner().invoke(main, list(map(str, args)), env=settings(folder))
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.output


def first_json(said):
    """What a command printed, without what came on stderr."""
    return json.JSONDecoder().raw_decode(said[said.index("{\n") :])[0]


@pytest.mark.slow
def test_a_cluster_is_measured(files):
    found = planner.load(files / "calibration.json")
    assert [d.name.split("/")[1] for d in found.devices] == [
        "job:chief",
        "job:worker",
    ]
    assert found.batch == 8 and found.slots == 2
    assert found.facts["model"] == str(files / "model.keras")
    assert "image" not in found.facts
    assert len(found.links) == 2
    model = keras.models.load_model(files / "model.keras")
    assert found.model == work_keys.fingerprint(calls_of(model))
    assert len(list((files / "cache" / "calibrations").iterdir())) == 1


def test_each_kind_of_layer_is_in_the_table_once(files):
    found = planner.load(files / "calibration.json")
    model = keras.models.load_model(files / "model.keras")
    graph = calls_of(model)
    said = (files / "said").read_text()
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in said.splitlines()
        if "│" in line
    ]
    by_layer = {row[0].partition(" ")[0]: row for row in rows if row[1:]}
    # The third layer's work is that of the second.
    assert by_layer["first"][1] == "1"
    assert by_layer["second"][1] == "2"
    assert "third" not in by_layer
    key = work_keys.key(graph, graph.calls[1])
    for device, cell in zip(found.devices, by_layer["second"][2:], strict=True):
        work = device.works[key]
        forward, backward = (1e3 * getattr(work, w)[-1] for w in PASSES)
        assert work.samples[-1] == 8
        assert cell == f"{forward:.2f} + {backward:.2f}"
    assert "chief 0 CPU:0 -> worker 0 CPU:0" in said


def test_a_plan_of_it(files, tmp_path):
    code, said = convpar(
        files,
        "plan",
        files / "calibration.json",
        f"--output={tmp_path / 'plan.json'}",
        f"--png={tmp_path / 'plan.png'}",
    )
    assert code == 0, said
    model = keras.models.load_model(files / "model.keras")
    calibration = planner.load(files / "calibration.json")
    plan = plans.load(tmp_path / "plan.json")
    assert plan == planner.plan(model, calibration)
    assert "Kernels, or samples, of each device" in said
    assert (tmp_path / "plan.png").stat().st_size > 1000

    # All by samples, five of them the chief's.
    content = json.loads((tmp_path / "plan.json").read_text())
    for layer in content["layers"]:
        layer.update(split="samples", of=8, shards=[5, 3])
    (tmp_path / "plan.json").write_text(json.dumps(content))
    code, said = convpar(
        files,
        "plan",
        files / "calibration.json",
        f"--model={files / 'model.keras'}",
        f"--plan={tmp_path / 'plan.json'}",
    )
    assert code == 0, said
    expected = planner.plan_of(
        model, calibration, plans.load(tmp_path / "plan.json")
    )
    assert expected.prediction.sent_bytes
    assert " ".join(expected.reason.split()) in " ".join(said.split())
    assert said.count("│ samples │  8 │") == 3

    # In half as many bytes, as the calibration says or as is asked for.
    measured = json.loads((files / "calibration.json").read_text())
    measured["facts"]["wire_dtype"] = "bfloat16"
    (tmp_path / "half.json").write_text(json.dumps(measured))
    sent = expected.prediction.sent_bytes
    for file, args in (
        (tmp_path / "half.json", ()),
        (files / "calibration.json", ("--wire-dtype=bfloat16",)),
    ):
        code, said = convpar(
            files, "plan", file, f"--plan={tmp_path / 'plan.json'}", "--json",
            *args,
        )  # fmt: skip
        assert code == 0, said
        half = first_json(said)["prediction"]["sent_bytes"]
        assert sum(half.values()) < 0.6 * sum(sent.values())

    content["layers"][1]["shards"] = [4, 4]
    (tmp_path / "plan.json").write_text(json.dumps(content))
    code, said = convpar(
        files,
        "plan",
        files / "calibration.json",
        f"--plan={tmp_path / 'plan.json'}",
    )
    assert code == 2
    assert "Received: [5, 3] for 'first', [4, 4] for 'second'" in said


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--quantum=8"], "--quantum with a calibration of a star only"),
        (["--model=ResNet"], "MODEL to be a .keras file or one of"),
    ],
)
def test_arguments_that_cannot_be(files, args, message):
    code, said = convpar(files, "plan", files / "calibration.json", *args)
    assert code in (1, 2)
    assert message in " ".join(said.split()) and "Traceback" not in said


def test_a_model_of_another_kind(files, tmp_path):
    other = keras.Sequential(
        [keras.Input((16, 16, 3)), keras.layers.Conv2D(4, 3)]
    )
    other.save(tmp_path / "other.keras")
    code, said = convpar(
        files,
        "plan",
        files / "calibration.json",
        f"--model={tmp_path / 'other.keras'}",
    )
    assert code == 2
    assert "Received one of another model" in said


def test_a_calibration_that_names_no_model(files, tmp_path):
    content = json.loads((files / "calibration.json").read_text())
    content["facts"] = {}
    (tmp_path / "calibration.json").write_text(json.dumps(content))
    code, said = convpar(files, "plan", tmp_path / "calibration.json")
    assert code == 2
    assert "does not name one" in " ".join(said.split())


def test_again_is_from_the_cache_unless_fresh(files, tmp_path, monkeypatch):
    """Here, where nothing has been measured yet."""
    found, measured = [], []
    model = keras.models.load_model(files / "model.keras")

    def measure(graph, devices, optimizer, batch, *others):
        measured.append(batch)
        return calibration_of(model, devices, batch, seed=len(measured))

    monkeypatch.setattr(
        "tf_convpar.planner.measure._calibrate._measured", measure
    )
    for args in ([], [], ["--fresh"]):
        code, said = convpar(
            tmp_path,
            "calibrate",
            files / "model.keras",
            "--batch=4",
            "--wire-dtype=bfloat16",
            "--json",
            *args,
        )
        assert code == 0, said
        found.append(first_json(said))
    assert measured == [4, 4]
    assert found[0] == found[1] != found[2]
    assert found[0]["kind"] == "calibration"
    assert found[0]["facts"]["wire_dtype"] == "bfloat16"


def test_a_file_that_is_no_model(tmp_path):
    (tmp_path / "model.keras").write_text("no")
    code, said = convpar(tmp_path, "calibrate", tmp_path / "model.keras")
    assert code in (1, 2) and "Traceback" not in said
    assert "model.keras" in said
