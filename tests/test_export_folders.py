"""Exports onto what is no ordinary new folder: whole, or as it was before."""

import errno
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from cases import slow
from processes import environment
from replica_cases import network

import tf_convpar as convpar

PROGRAM = Path(__file__).parent / "programs/mounted.py"
FILES = [
    "fingerprint.pb",
    "saved_model.pb",
    "variables/variables.data-00000-of-00001",
    "variables/variables.index",
]
ENTRIES = ["assets", "fingerprint.pb", "saved_model.pb", "variables"]
X = np.ones((2, 8, 8, 1), "float32")


def may_mount():
    if shutil.which("unshare") is None:
        return False
    line = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(line, capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not may_mount(), reason="may mount nothing")
def test_disks(tmp_path):
    """Mounted where the export is, in it, beside it; and full ones."""
    done = subprocess.run(
        ["unshare", "-rm", sys.executable, PROGRAM],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for name in ("empty", "mounted", "linked", "within"):
        came, same, now, _ = found[name]
        assert (came, same) == ("exported", False), name
        assert [file for file in now if "within" not in file] == FILES
    assert found["mounted"][3] == sorted([*ENTRIES, "disk", "lost+found"])
    came, same, now, beside = found["inner"]
    assert came.startswith("OSError") and same and now == FILES
    assert [name for name in beside if name.startswith(".")] == []
    for part in (0.0, 0.3, 0.6, 0.9):
        came, same, now, beside = found[f"full {part}"]
        assert "room for a whole export. Received a disk with 0.0 MB" in came
        assert same and now == FILES
        assert beside == ENTRIES


@pytest.fixture
def model(strategy):
    with strategy.scope():
        return convpar.parallelize(network(), "equal")


def other(model):
    """Other weights than before, and what they predict."""
    model.set_weights([0.9 * w for w in model.get_weights()])
    return model.predict(X, verbose=0)


def served(folder):
    loaded = tf.saved_model.load(str(folder))
    return loaded.serve(X).numpy()


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def entries(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
def test_links_stay_and_what_they_lead_to_is_replaced(model, tmp_path):
    (tmp_path / "v1").mkdir()
    (tmp_path / "current").symlink_to("v1")
    (tmp_path / "next").symlink_to("v2")  # Which is not there yet.
    for link, to in (("current", "v1"), ("current", "v1"), ("next", "v2")):
        expected = other(model)
        convpar.export(model, tmp_path / link)
        assert (tmp_path / link).readlink() == Path(to)
        np.testing.assert_allclose(
            served(tmp_path / to), expected, rtol=1e-5, atol=1e-6
        )
        assert entries(tmp_path / to) == ENTRIES
    assert entries(tmp_path) == ["current", "next", "v1", "v2"]
    for name, to in (("a", "b"), ("b", "a")):
        (tmp_path / name).symlink_to(to)
    with pytest.raises(ValueError, match="new, an empty folder.*Received"):
        convpar.export(model, tmp_path / "a")


@pytest.mark.slow
def test_the_current_folder_and_one_that_is_open(model, tmp_path, monkeypatch):
    target = tmp_path / "served"
    target.mkdir(mode=0o751)
    monkeypatch.chdir(target)
    opened = os.open(target, os.O_RDONLY)
    try:
        for path in (".", "", target):
            expected = other(model)
            convpar.export(model, path)
            np.testing.assert_allclose(
                served(target), expected, rtol=1e-5, atol=1e-6
            )
            assert sorted(os.listdir(".")) == ENTRIES
            assert sorted(os.listdir(opened)) == ENTRIES
            assert Path.cwd() == target
    finally:
        os.close(opened)
    assert target.stat().st_mode & 0o777 == 0o751
    assert entries(tmp_path) == ["served"]


def test_what_somebody_has_put_beside_an_export_stays(model, tmp_path):
    convpar.export(model, tmp_path)
    (tmp_path / "README.md").write_text("of digits")
    (tmp_path / "assets/old.txt").write_text("of the export before")
    # As TensorFlow wrote it for a Keras of old, and this one does not.
    (tmp_path / "keras_metadata.pb").touch()
    convpar.export(model, tmp_path)
    assert entries(tmp_path) == ["README.md", *ENTRIES]
    assert not entries(tmp_path / "assets")


@pytest.mark.slow
@pytest.mark.parametrize(
    "error", [slow(OSError(errno.EBUSY, "busy")), KeyboardInterrupt()]
)
def test_an_export_that_is_interrupted_changes_nothing(
    model, tmp_path, monkeypatch, error
):
    """Wherever it is."""
    target = tmp_path / "served"
    convpar.export(model, target)
    before = contents(target)
    other(model)
    rename, calls = pathlib.Path.rename, []
    when = {"at": 0, "late": False}

    def fails(self, to):
        calls.append(to)
        if len(calls) != when["at"]:
            return rename(self, to)
        if when["late"]:
            rename(self, to)
        raise error

    monkeypatch.setattr(pathlib.Path, "rename", fails)
    # Four of the earlier export and four of the new one.
    for when["late"], when["at"] in itertools.product((0, 1), range(1, 9)):
        calls.clear()
        with pytest.raises(type(error)):
            convpar.export(model, target)
        assert contents(target) == before
        assert entries(target) == ENTRIES
    when["at"] = 0
    expected = other(model)
    convpar.export(model, target)
    np.testing.assert_allclose(served(target), expected, rtol=1e-5, atol=1e-6)
    when.update(at=1, late=False)
    calls.clear()
    with pytest.raises(type(error)):
        convpar.export(model, tmp_path / "new")
    assert entries(tmp_path) == ["served"]


def test_what_cannot_be_put_back_is_not_removed(model, tmp_path, monkeypatch):
    target = tmp_path / "served"
    convpar.export(model, target)
    rename, calls = pathlib.Path.rename, []

    def fails(self, to):
        calls.append(to)
        if len(calls) in (3, 4):
            raise OSError(errno.EIO, "broken")
        return rename(self, to)

    monkeypatch.setattr(pathlib.Path, "rename", fails)
    with pytest.raises(OSError, match="broken; what is missing.*is in") as told:
        convpar.export(model, target)
    (folder,) = (p for p in target.iterdir() if p.name.startswith("."))
    assert str(folder / "before") in str(told.value)
    assert set(entries(folder / "before")) | set(entries(target)) >= set(
        ENTRIES
    )


def test_a_path_of_another_machine_is_refused(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="of this machine. Received.*gs://"):
        convpar.export(model, "gs://bucket/digits")
    assert not entries(tmp_path)
