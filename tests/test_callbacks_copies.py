"""Copies of `Elastic` on a disk that hangs or fails, and what is none."""

import threading
import time
import zipfile

import keras
import numpy as np
import pytest
from cases import slow
from replica_cases import data
from replica_cases import network

import tf_convpar as convpar
from tf_convpar.callbacks import snapshot_file
from tf_convpar.callbacks.snapshot import Snapshot
from tf_convpar.callbacks.snapshot import restore
from tf_convpar.callbacks.snapshot import state_of

OPTIONS = {"batch_size": 8, "verbose": 0}


@pytest.fixture
def model(strategy):
    with strategy.scope():
        plain = network(keras.optimizers.Adam())
        return convpar.parallelize(plain, "equal")


class Disk:
    """Hangs from the second file on until it is told to go on."""

    def __init__(self, monkeypatch):
        self.goes_on, self.hangs = threading.Event(), threading.Event()
        self.save, self.places = snapshot_file.save, []
        monkeypatch.setattr("tf_convpar.callbacks.snapshot_file.save", self)

    def __call__(self, folder, names, arrays, place):
        if self.places:
            self.hangs.set()
            self.goes_on.wait(60)
        self.places.append(place)
        self.save(folder, names, arrays, place)


class Keeps(keras.callbacks.Callback):
    """How many steps are kept, of those since the disk began to hang."""

    def __init__(self, elastic, disk=None, until=None):
        super().__init__()
        self.elastic, self.disk, self.until = elastic, disk, until
        self.steps = []

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.02)  # As much as a copy takes.
        if self.disk is None or self.disk.hangs.is_set():
            self.steps.append(self.elastic._copies.since.steps)
        if len(self.steps) == self.until:
            self.disk.goes_on.set()


def test_a_disk_that_hangs_lets_nothing_grow(model, monkeypatch, tmp_path):
    x, y = data()
    disk = Disk(monkeypatch)
    elastic = convpar.callbacks.Elastic(tmp_path, every=1e-3)
    keeps = Keeps(elastic, disk, until=60)
    model.fit(x, y, epochs=4, callbacks=[elastic, keeps], **OPTIONS)
    assert len(keeps.steps) > 60
    # Copies come all the same, and batches before them are forgotten. On a busy
    # machine a copy takes more than ten steps to come.
    assert max(keeps.steps) <= 30
    # Those that came while it hung were not written, later ones were.
    assert len(disk.places) < 30
    assert disk.places == sorted(disk.places)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_end_of_a_training_waits_for_the_disk(model, monkeypatch, tmp_path):
    """But not for ever, and what it writes later does not stay."""
    x, y = data()
    monkeypatch.setattr("tf_convpar.callbacks._writer._LONG_S", 0.3)
    disk = Disk(monkeypatch)
    elastic = convpar.callbacks.Elastic(tmp_path, every=1e-3)
    keeps = Keeps(elastic, disk)
    with pytest.warns(RuntimeWarning) as caught:
        model.fit(x, y, epochs=3, callbacks=[elastic, keeps], **OPTIONS)
    told = [str(w.message) for w in caught if "snapshot" in str(w.message)]
    # Once while it trained, and in the end.
    while_it_trains, in_the_end = told
    assert "the one before has been written for" in while_it_trains
    assert "is removed as soon as it is" in in_the_end
    assert (tmp_path / "elastic.npz").exists()
    disk.goes_on.set()
    end = time.monotonic() + 10
    while list(tmp_path.iterdir()) and time.monotonic() < end:
        time.sleep(0.02)
    assert len(disk.places) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [slow(zipfile.LargeZipFile), MemoryError])
def test_whatever_fails_as_a_copy_is_written_is_told(
    model, monkeypatch, tmp_path, error
):
    def fails(*args):
        raise error("too much")

    x, y = data()
    monkeypatch.setattr("tf_convpar.callbacks.snapshot_file.save", fails)
    elastic = convpar.callbacks.Elastic(tmp_path, every=1e-3)
    keeps = Keeps(elastic)
    with pytest.warns(RuntimeWarning, match=f"{error.__name__}: too much"):
        model.fit(x, y, callbacks=[elastic, keeps], **OPTIONS)
    assert max(keeps.steps) <= 10


def test_whatever_fails_as_a_copy_is_fetched_is_told(model, monkeypatch):
    def fails(*args):
        raise MemoryError("too much")

    snapshot = Snapshot(model)
    monkeypatch.setattr(snapshot, "_fetch", fails)
    snapshot.begin(model, (0, 0))
    with pytest.warns(RuntimeWarning, match="copy the model.*MemoryError"):
        assert not snapshot.arrived(wait=True)


def test_training_waits_for_copies_that_are_slower(model, monkeypatch):
    """Where the chief is: batches since then have but so much memory."""
    x, y = data(96)
    model.fit(x, y, **OPTIONS)
    batch = x[:8].nbytes + y[:8].nbytes
    monkeypatch.setattr("tf_convpar.callbacks._copies._MOST_HELD", 3 * batch)
    fetch = Snapshot._fetch

    def slow(self, *args):
        time.sleep(0.2)
        fetch(self, *args)

    monkeypatch.setattr(Snapshot, "_fetch", slow)
    elastic = convpar.callbacks.Elastic(every=1e-3)
    keeps = Keeps(elastic)
    model.fit(x, y, callbacks=[elastic, keeps], **OPTIONS)
    assert 2 <= max(keeps.steps) <= 4


def test_a_copy_that_does_not_fit_changes_nothing(model, tmp_path):
    x, y = data()
    model.fit(x, y, **OPTIONS)
    names = [v.path for v in state_of(model)]
    arrays = [np.asarray(v) for v in state_of(model)]

    def of(index, array):
        return [array if i == index else a for i, a in enumerate(arrays)]

    last = len(arrays) - 1
    before = [a.copy() for a in arrays]
    for given, other, place, words in (
        ([], [], (0, 0), "Received one with 0; the first.* is none in"),
        (names[:-1], arrays[:-1], (0, 0), "the first to differ is none"),
        ([*names, "more"], [*arrays, arrays[0]], (0, 0), "'more' of float32"),
        (names[::-1], arrays[::-1], (0, 0), "Received one with"),
        *(
            (names, of(last, array), (0, 0), words)
            for array, words in (
                (arrays[last].astype("float64"), "of float64 and shape"),
                (arrays[last].astype("int32"), "of int32 and shape"),
                (arrays[last].astype(str), "of <U32 and shape"),
                (arrays[last].astype("V3"), r"of \|V3 and shape"),
                (arrays[last][None], r"of float32 and shape \(1, "),
            )
        ),
        (names, arrays, (-1, 0), "has written. Received.*epoch -1, step 0"),
        (names, arrays, (0, -2), "has written. Received.*epoch 0, step -2"),
        (names, arrays, (0.5, 1.0), "has written. Received.*epoch 0.5"),
        (names, arrays, (1, 2, 3), "has written. Received"),
    ):
        snapshot_file.save(tmp_path, given, other, place)
        with pytest.raises(ValueError, match=words):
            restore(model, snapshot_file.load(tmp_path), tmp_path)
        for a, b in zip(state_of(model), before, strict=True):
            np.testing.assert_array_equal(a, b)
    # One that fits does.
    snapshot_file.save(tmp_path, names, [a + 1 for a in arrays], (2, 3))
    assert snapshot_file.load(tmp_path).place == (2, 3)
    restore(model, snapshot_file.load(tmp_path), tmp_path)
    for a, b in zip(state_of(model), before, strict=True):
        np.testing.assert_array_equal(a, b + 1)


def test_a_model_without_variables_and_a_copy(strategy, tmp_path):
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.ReLU()])
    snapshot_file.save(tmp_path, ["a"], [np.ones(2, "float32")], (0, 0))
    with pytest.raises(ValueError, match="with 0 variables. Received one wit"):
        restore(model, snapshot_file.load(tmp_path), tmp_path)


def test_a_model_that_was_never_compiled(strategy):
    with strategy.scope():
        layers = [keras.Input((8, 8, 1)), keras.layers.Conv2D(6, 3)]
        plain = keras.Sequential(layers)
        model = convpar.parallelize(plain, "equal")
    x, _ = data(32)
    elastic = convpar.callbacks.Elastic(every=1e-3)
    found = model.predict(x, verbose=0, callbacks=[elastic])
    np.testing.assert_allclose(found, plain.predict(x, verbose=0), 1e-5, 1e-6)
