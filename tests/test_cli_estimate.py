"""`convpar estimate`."""

import json

import keras
import pytest
from click.testing import CliRunner

from tf_convpar import units
from tf_convpar.cli import estimate
from tf_convpar.papers.estimate.memory import Step


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    layers = keras.layers
    network = keras.Sequential(
        [
            layers.Input((32, 32, 3)),
            layers.Conv2D(32, 3, activation="relu", name="first"),
            layers.Conv2D(64, 3, activation="relu", name="second"),
            layers.MaxPooling2D(name="pool"),
            layers.Flatten(),
            layers.Dense(10, name="dense"),
        ]
    )
    path = tmp_path_factory.mktemp("estimate") / "model.keras"
    network.save(path)
    return str(path)


def run(*arguments):
    return CliRunner().invoke(estimate.command, list(arguments))


def run_json(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_memory(model, tmp_path):
    png = tmp_path / "memory.png"
    report = run_json(
        "memory",
        model,
        "--batch=64",
        "--batch=16",
        "--optimizer=adam",
        f"--png={png}",
        "--memory=1GiB",
    )
    assert (report["model"], report["optimizer"]) == (model, "adam")
    loaded = keras.models.load_model(model)
    for found, batch in zip(report["batches"], (16, 64), strict=True):
        expected = Step(loaded, "adam").memory(batch).to_dict()
        assert found == {**expected, "measured": None}
    assert png.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in tmp_path.iterdir()] == ["memory.png"]


def test_table_of_memory(model):
    result = run("memory", model, "--batch=16", "--layers=2")
    assert result.exit_code == 0, result.output
    memory = Step(keras.models.load_model(model)).memory(16)
    largest = sorted(memory.rows, key=lambda row: -row.total)
    assert largest[0].layer in result.output
    assert largest[1].layer in result.output
    assert f"{len(largest) - 2} more" in result.output
    assert f"At the peak {memory.peak_bytes / 2**20:.1f} MiB" in result.output
    assert "model.keras, batch 16" in result.output


def test_workspaces_of_an_algorithm(model):
    plain, gemm = (
        run_json("memory", model, "--batch=16", *more)["batches"][0]
        for more in ((), ("--algorithm=gemm",))
    )
    unfolded = 16 * 28 * 28 * 3 * 3 * 32 * 4
    assert plain["peak"]["workspace"] == 0
    assert gemm["peak"]["workspace"] >= unfolded
    assert (
        gemm["peak_bytes"] - plain["peak_bytes"] == (gemm["peak"]["workspace"])
    )


def test_largest_batch(model):
    report = run_json("batch", model, "--memory=32MiB")
    largest = report["largest"]
    assert report["memory_bytes"] == 32 * 2**20
    found = run_json(
        "memory", model, f"--batch={largest}", f"--batch={largest + 1}"
    )
    fits, beyond = (b["peak_bytes"] for b in found["batches"])
    assert fits <= 32 * 2**20 < beyond
    text = run("batch", model, "--memory=32MiB").output
    assert f"Largest batch: {largest} images" in text


def test_best_batch(model, tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONVPAR_CACHE", str(tmp_path))
    arguments = ("batch", model, "--memory=64MiB", "--best")
    sizes = ("--batch=2", "--batch=8", "--batch=500")
    report = run_json(*arguments, *sizes)
    rows = {row["batch"]: row for row in report["batches"]}
    assert list(rows)[0] == report["best"] in (2, 8)
    assert rows[500]["step_s"] is None
    assert rows[2]["image_s"] == rows[2]["step_s"] / 2 > 0
    assert set(rows[8]["choices"]) <= {"first", "second"}
    assert "second" in rows[8]["choices"]
    monkeypatch.setenv("COLUMNS", "120")
    output = run(*arguments, *sizes, "--sum").output
    assert "does not fit" in output
    assert "Not direct" in output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--overhead=0.05", "--devices=8"],
            {"speedup": 6.0, "efficiency": 0.75, "overhead_ratio": 0.05},
        ),
        (["--overhead=0.05", "--speedup=6"], {"devices": 8, "speedup": 6.0}),
        (
            ["--efficiency=0.8", "--devices=4"],
            {"overhead_ratio": 1 / 11, "efficiency": 0.8, "speedup": 3.2},
        ),
        (
            ["--efficiency=0.5", "--devices=2"],
            {"overhead_ratio": None, "speedup": 1.0, "efficiency": 0.5},
        ),
    ],
)
def test_devices(arguments, expected):
    report = run_json("devices", *arguments)
    found = {name: report[name] for name in expected}
    assert found == pytest.approx(expected)


def test_devices_in_words():
    output = run("devices", "--overhead=0.05", "--speedup=6").output
    assert "8 devices" in output and "6.00 times" in output
    assert "75.0%" in output
    output = run("devices", "--efficiency=0.5", "--devices=2").output
    assert "any overhead" in output


def test_servers():
    arguments = ["servers", "--workers=8", "--link=10Gbit", "--compute=1s"]
    report = run_json(*arguments, "--parameters=244MB")
    assert report["servers"] == 4
    assert report["busy_s"] == pytest.approx(2 * 244e6 * 8 / 1.25e9 / 4)
    half = run_json(*arguments, "--parameters=244MB", "--full-duplex")
    assert half["servers"] == 2
    output = run(*arguments, "--parameters=1kB").output
    assert output.startswith("1 parameter server:")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 << 30),
        ("244MB", 244_000_000),
        ("1.5 KiB", 1536),
        ("2kB", 2000),
        ("2KB", 2000),
        ("77", 77),
        ("77B", 77),
        ("1T", None),
        ("0MB", None),
        ("-1MB", None),
        ("many", None),
    ],
)
def test_sizes(text, size):
    if size is None:
        with pytest.raises(ValueError, match="bytes above 0.* Received: "):
            units.size(text)
    else:
        assert units.size(text) == size


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["memory", "ResNet51"], 2, "Expected MODEL to be a .keras file or"),
        (["memory", "{model}", "--batch=0"], 2, "0 is not in the range"),
        (["memory", "{model}", "--optimizer=best"], 2, "best"),
        (["memory", "{model}", "--algorithm=best"], 2, "Received: 'best'"),
        (
            ["memory", "{model}", "--png=/no/where.png"],
            2,
            "Received: /no/where",
        ),
        (["memory", "{open}"], 2, "inputs have known sizes"),
        (["batch", "{model}"], 2, "--memory"),
        (["batch", "{model}", "--memory=8XB"], 2, "Received: 8XB"),
        (["batch", "{model}", "--memory=10kB"], 2, "for a batch of one image"),
        (["batch", "{model}", "--memory=1GB", "--batch=3"], 2, "with --best"),
        (["devices", "--devices=2"], 2, "Received: --devices"),
        (["devices"], 2, "Received: nothing"),
        (["devices", "--overhead=0.05", "--speedup=30"], 2, "/ R = 21"),
        (["devices", "--overhead=-1", "--devices=3"], 2, "Received: -1"),
        (
            "servers --parameters=1MB --workers=1 --link=fast --compute=1s",
            2,
            "Received: 'fast'",
        ),
        (
            "servers --parameters=1MB --workers=1 --link=1Gbit --compute=0",
            2,
            "`compute_s`",
        ),
    ],
)
def test_what_it_cannot_use(arguments, code, message, model, tmp_path):
    if isinstance(arguments, str):
        arguments = arguments.split()
    of_any_size = tmp_path / "open.keras"
    if "{open}" in arguments:
        keras.Sequential(
            [keras.layers.Input((None, None, 3)), keras.layers.Conv2D(4, 3)]
        ).save(of_any_size)
    result = run(*(a.format(model=model, open=of_any_size) for a in arguments))
    assert result.exit_code == code, result.output
    assert message in result.output
    assert "Traceback" not in result.output
