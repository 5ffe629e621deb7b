"""What choices of algorithms are remembered by."""

import dataclasses
import json

import choices
import pytest
import tensorflow as tf
from choices import forget

from tf_convpar import algorithms
from tf_convpar.algorithms import FORWARD
from tf_convpar.algorithms import INPUT_GRADIENT
from tf_convpar.algorithms import PASSES
from tf_convpar.algorithms import Geometry
from tf_convpar.algorithms import _choose
from tf_convpar.algorithms import cache
from tf_convpar.algorithms import candidates
from tf_convpar.algorithms import processor
from tf_convpar.algorithms.cache import Candidate
from tf_convpar.algorithms.cache import Record

GEOMETRY = Geometry((14, 14), 32, 64, window=(3, 3), padding="same", batch=3)
HERE = "/job:localhost/replica:0/task:0/device:CPU:0"
WORKER = "/job:worker/replica:0/task:{}/device:CPU:0"


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    yield from choices.fresh(tmp_path, monkeypatch)


def record(name, time_ms=1.0):
    return Record(name, (Candidate(name, 1, 0, time_ms=time_ms),))


def key(geometry=GEOMETRY, which=FORWARD, device=HERE):
    return _choose._key(geometry, which, processor.facts(device))


def test_everything_that_a_time_depends_on_is_in_its_key(monkeypatch):
    keys = [key(), key(which=INPUT_GRADIENT)]
    keys += [key(device=WORKER.format(task)) for task in range(2)]
    keys += [
        key(dataclasses.replace(GEOMETRY, **{name: value}))
        for name, value in {
            "image": (14, 15),
            "channels": 33,
            "filters": 65,
            "window": (3, 5),
            "strides": (1, 2),
            "padding": "valid",
            "dilation": (1, 2),
            "batch": 4,
            "dtype": "float64",
        }.items()
    ]
    for place, name, value in (
        (processor, "instruction_set", "sse"),
        (processor.machines, "processor", "Z80"),
        (tf.config.threading, "get_intra_op_parallelism_threads", 77),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, lambda *_, value=value: value)
            keys.append(key())
    for name, value in (
        ("TF_ENABLE_ONEDNN_OPTS", "2"),
        (candidates.WORKSPACE, "7"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            keys.append(key())
    assert len(set(keys)) == len(keys)
    # The devices of one process are one processor.
    assert key(device=HERE.replace("CPU:0", "CPU:1")) == key()


def test_the_first_of_several_workers_is_no_other(monkeypatch):
    first, second = map(WORKER.format, range(2))
    monkeypatch.setattr(
        tf.config,
        "list_logical_devices",
        lambda kind: [tf.config.LogicalDevice(first, kind)],
    )
    # Neither is there to be asked.
    assert first not in key(device=first)
    assert second in key(device=second)


def test_choices_in_memory_are_of_a_device_and_of_settings(
    monkeypatch, tmp_path
):
    asked = []

    def consult(geometry, device):
        asked.append((geometry, device))
        return {which: record("direct") for which in PASSES}

    monkeypatch.setattr("tf_convpar.algorithms._choose.consult", consult)

    def asks(*arguments):
        before = len(asked)
        for _ in range(2):
            algorithms.choose(*arguments)
        return len(asked) - before

    assert asks(GEOMETRY) == 1
    assert asks(GEOMETRY, HERE) == 1
    assert asks(dataclasses.replace(GEOMETRY, batch=4)) == 1
    for name, value in (
        (candidates.WORKSPACE, "7"),
        (cache.FOLDER, str(tmp_path / "7")),
        ("XDG_CACHE_HOME", str(tmp_path / "7")),
    ):
        monkeypatch.setenv(name, value)
        assert asks(GEOMETRY) == 1


def test_what_is_measured_again_is_chosen_again(monkeypatch):
    for name in ("direct", "gemm"):
        monkeypatch.setattr(
            "tf_convpar.algorithms._choose._race_record",
            lambda *args, name=name: record(name),
        )
        algorithms.consult(GEOMETRY, refresh=True)
        assert algorithms.choose(GEOMETRY).forward.name == name


def test_where_nothing_competes_nothing_is_kept(monkeypatch):
    monkeypatch.setattr(
        "tf_convpar.algorithms.candidates.candidates", lambda *args: []
    )
    for found in algorithms.consult(GEOMETRY).values():
        assert found == Record("direct", rule="no algorithm takes less work")
    assert json.loads(cache.path().read_text())["records"] == {}


def test_a_process_with_a_gpu_leaves_the_choice_to_it(monkeypatch):
    assert processor.cpu(None).endswith("CPU:0")
    real = tf.config.list_logical_devices

    def devices(kind):
        return ["GPU:0"] if kind == "GPU" else real(kind)

    monkeypatch.setattr(tf.config, "list_logical_devices", devices)
    assert processor.cpu(None) is None


def write(**records):
    """As another process does."""
    content = {
        **cache._versions(),
        "records": {k: dataclasses.asdict(r) for k, r in records.items()},
    }
    cache.path().write_text(json.dumps(content))


def test_what_others_measure_is_found_and_ones_own_is_kept():
    cache.keep({"a": record("direct")})
    assert cache.find("b") is None
    write(a=record("direct", 7.0), b=record("gemm"))
    assert cache.find("b") == record("gemm")
    # A choice that was made stays, for as long as the process runs.
    assert cache.find("a") == record("direct")
    # A file of the same size.
    write(a=record("direct", 8.0), c=record("gemm"))
    assert cache.find("c") == record("gemm")
    assert cache.find("b") == record("gemm")


def test_each_folder_has_its_own_memory(monkeypatch, tmp_path):
    cache.keep({"a": record("direct")})
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "other"))
    assert cache.find("a") is None


@pytest.mark.parametrize("name", ["FORMAT", "ALGORITHMS"])
def test_records_of_other_versions_are_not_used(name, monkeypatch):
    cache.keep({"a": record("direct")})
    forget()
    monkeypatch.setattr(f"tf_convpar.algorithms.cache.{name}", 99)
    with pytest.warns(RuntimeWarning, match="measured again"):
        assert cache.find("a") is None


def test_a_failed_write_leaves_no_file_behind(monkeypatch, tmp_path):
    cache.keep({"a": record("direct")})

    def fail(*args, **kwargs):
        raise OSError("full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.warns(RuntimeWarning, match="Could not write"):
        cache.keep({"b": record("direct")})
    # Some versions of filelock leave theirs.
    left = {path.name for path in tmp_path.iterdir()}
    assert left - {"algorithms.lock"} == {"algorithms.json"}
    forget()
    assert cache.find("a") == record("direct")


def test_records_that_are_already_written():
    """As by the first version with this format; nothing has a default."""
    candidate = {
        "name": "direct",
        "multiplications": 12,
        "workspace_bytes": 0,
        "error": 1e-7,
        "time_ms": 2.5,
        "spread_ms": 0.25,
        "ratio": 1.0,
        "dropped": None,
    }
    wrong = dict.fromkeys(candidate) | {
        "name": "fft:10",
        "multiplications": 3,
        "workspace_bytes": 4096,
        "error": float("nan"),
        "dropped": "error over 0.0001",
    }
    record = {
        "chosen": "direct",
        "candidates": [candidate, wrong],
        "rule": None,
    }
    content = {**cache._versions(), "records": {"a": record}}
    text = json.dumps(content, indent=1)
    cache.path().write_text(text)
    found = cache.find("a")
    assert repr(found.candidates[1].error) == "nan"
    assert found.direct == Candidate("direct", 12, 0, 1e-7, 2.5, 0.25, 1.0)
    # And so they are written.
    cache.path().unlink()
    cache.keep({"a": found})
    assert cache.path().read_text() == text


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    """Versions of filelock before 3.20.1 empty what it leads to."""
    precious = tmp_path / "precious"
    precious.write_text("text")
    cache.path().with_suffix(".lock").symlink_to(precious)
    with pytest.warns(RuntimeWarning, match="Could not write"):
        cache.keep({"a": record("direct")})
    assert precious.read_text() == "text"
    assert cache.find("a") == record("direct")


@pytest.mark.parametrize(
    "error", [PermissionError(13, "no"), NotImplementedError("no flock")]
)
def test_what_cannot_be_locked_is_not_written(error, monkeypatch, tmp_path):
    def fail(self, *args, **kwargs):
        raise error

    monkeypatch.setattr(cache.filelock.FileLock, "acquire", fail)
    with pytest.warns(RuntimeWarning, match=r"Could not write .*: no"):
        cache.keep({"a": record("direct")})
    assert not list(tmp_path.iterdir())
    assert cache.find("a") == record("direct")
