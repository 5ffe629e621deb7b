"""What `convpar demo` is made of: images, settings, shares of cores."""

import pathlib
import sys
import time

import keras
import numpy as np
import psutil
import pytest
from click.testing import CliRunner
from processes import kill_tree
from processes import start

from tf_convpar import machines
from tf_convpar.cli.main import main
from tf_convpar.demo import data
from tf_convpar.demo import report as report_lib
from tf_convpar.demo import slowed
from tf_convpar.demo.settings import Settings
from tf_convpar.demo.settings import default_shards
from tf_convpar.demo.settings import parse_shards


def test_cifar10_without_a_network(monkeypatch):
    def fail():
        raise Exception("URL fetch failure")

    monkeypatch.setattr(keras.datasets.cifar10, "load_data", fail)
    with pytest.raises(RuntimeError, match="URL fetch.*digits"):
        data.load("cifar10")


def test_digits():
    images = data.load("digits")
    assert images.x.shape[1:] == images.held_out_x.shape[1:] == (32, 32, 3)
    assert len(images.x) + len(images.held_out_x) == 1797
    assert len(images.y) == len(images.x)
    assert set(images.held_out_y) == set(range(10))
    assert images.x.mean() == pytest.approx(0, abs=1e-3)
    assert images.x.std() == pytest.approx(1, abs=1e-3)
    assert images.x.dtype == "float32"
    # Labels moved with their images: one is near others of its class.
    means = [images.x[images.y == label].mean(axis=0) for label in range(10)]
    distances = [((images.held_out_x - m) ** 2).sum((1, 2, 3)) for m in means]
    nearest = np.argmin(distances, axis=0)
    assert np.mean(nearest == images.held_out_y) > 0.8


def test_batches():
    count = 10
    x = np.arange(count, dtype="float32")
    images = data.Images(x, x.astype(int), x[:0], x[:0])

    def seen(seed):
        drawn = data.batches(images, batch_size=4, steps=5, seed=seed)
        assert len(drawn) == 5
        drawn = [(x.numpy(), y.numpy()) for x, y in drawn]
        assert [len(x) for x, _ in drawn] == [4] * 5
        assert all((x == y).all() for x, y in drawn)
        return np.concatenate([x for x, _ in drawn]).tolist()

    first = seen(1)
    assert set(first[:count]) == set(first[count:]) == set(x)
    assert first[:count] != first[count:]
    assert seen(1) == first != seen(2)


def test_shards():
    assert default_shards(3, 2) == (0.25, 1.0, 0.5)
    assert default_shards(3, 8) == (0.5, 1.0, 1.0)
    assert parse_shards(None, (0.25, 1.0)) == [0.25, 1.0]
    assert parse_shards("1,2.5", (1.0, 1.0)) == [1, 2.5]
    assert isinstance(parse_shards("1,2.5", (1.0, 1.0))[0], int)


def test_settings_survive_the_way_to_the_chief():
    settings = Settings(
        "digits", [1, 2.5], "bfloat16", 8, 4, 1, pathlib.Path("a b/c"), 2
    )
    assert Settings.from_json(settings.to_json()) == settings


def test_workers_have_their_parts_of_a_core():
    """Two that would take all they get share one core by 3 : 2.

    Where others compute on it as well, they get less, and not by their parts.
    """
    chief, *parts = slowed.parts(3, 2, star=False)
    assert (chief, *slowed.parts(2, 2, star=False)) == (1, 1, 1)
    assert sum(slowed.parts(6, 2, star=False)) == pytest.approx(2)
    spin = [sys.executable, "-c", "while True: pass"]
    both = [start(spin), start(spin)]
    try:
        pids = [process.pid for process in both]
        machines.pin(pids, machines.usable_cores()[-1:])
        with slowed.to_parts(pids, parts) as begin:
            begin()
            time.sleep(1)
            before = [used(pid) for pid in pids]
            since = time.monotonic()
            time.sleep(2)
            first, second = (
                used(p) - b for p, b in zip(pids, before, strict=True)
            )
            passed = time.monotonic() - since
        for took, part in zip((first, second), parts, strict=True):
            assert took < (1.1 * part + 0.03) * passed
        if first + second > 0.9 * passed:
            assert 1.2 < first / second < 1.9
        states = {psutil.Process(pid).status() for pid in pids}
        assert psutil.STATUS_STOPPED not in states
    finally:
        for process in both:
            kill_tree(process)


def used(pid):
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def test_differences_of_losses():
    found = report_lib.differences([1.0, 2.0, 0.0], [1.0, 1.0, 0.0])
    assert list(found) == [0, 0.5, 0]


def test_shards_are_the_stars():
    result = CliRunner().invoke(main, ["demo", "--shards=1,2,3"])
    assert result.exit_code == 2 and "--star" in result.output
    for tasks in (0, 1):  # The chief counts, as in `launch -n`.
        result = CliRunner().invoke(main, ["demo", f"--workers={tasks}"])
        assert result.exit_code == 2
