"""The file in which choices of algorithms are kept."""

import json
import multiprocessing
import os

import choices
import forks
import pytest
from choices import GEOMETRY
from choices import forget
from choices import names
from processes import environment

from tf_convpar import algorithms
from tf_convpar.algorithms import FORWARD
from tf_convpar.algorithms import PASSES
from tf_convpar.algorithms import _choose
from tf_convpar.algorithms import cache
from tf_convpar.algorithms.cache import Candidate
from tf_convpar.algorithms.cache import Record


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """And little time."""
    monkeypatch.setattr("tf_convpar.algorithms._choose._BUDGET_S", 0.1)
    yield from choices.fresh(tmp_path, monkeypatch)


@pytest.fixture
def races(monkeypatch):
    return choices.races(monkeypatch)


@pytest.mark.slow
def test_other_processes_read_it(races):
    chosen = names(algorithms.choose(GEOMETRY))
    program = f"""
import tensorflow as tf
from tf_convpar.algorithms import PASSES, Geometry, choose, race
race.race = None
choice = choose({GEOMETRY!r})
print([getattr(choice, which).name for which in PASSES])
"""
    done = forks.run(["-c", program], env=environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == repr(chosen)


def keep_some(writer):
    for i in range(10):
        cache.keep({f"{writer} {i}": Record("direct", (CANDIDATE,))})


CANDIDATE = Candidate("direct", 1, 0)


def test_several_processes_write():
    # They touch files only, nothing of TensorFlow's.
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=keep_some, args=(i,)) for i in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    for i in range(4):
        for j in range(10):
            assert cache.find(f"{i} {j}").direct == CANDIDATE
    left = set(os.listdir(cache.path().parent))
    assert left - {"algorithms.lock"} == {"algorithms.json"}


def content(**changes):
    return json.dumps({**cache._versions(), "records": {}, **changes})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "\x00",
        content(records=[]),
        content(records={"a": {"chosen": "direct"}}),
        content(records={"a": {"chosen": 1, "rule": None, "candidates": []}}),
        content(records={"a": {"chosen": "x", "rule": None, "candidates": []}}),
        content(records={"a": None}),
        content(format=0),
        content(tensorflow="1.0"),
    ],
)
def test_damaged_or_old_file(text, tmp_path):
    file = tmp_path / "algorithms.json"
    file.write_text(text)
    with pytest.warns(RuntimeWarning, match=str(file)) as caught:
        assert cache.find("a") is None
        cache.keep({"a": Record("direct", (CANDIDATE,))})
    assert len(caught) == 1
    cache.forget()
    assert cache.find("a").direct == CANDIDATE


@pytest.mark.parametrize(
    "changes",
    [
        {"chosen": "quantum:4"},
        {"chosen": "winograd:4x4x4"},  # Of other convolutions.
        {"chosen": "phases:fft"},
        {"candidates": "quantum:4"},
    ],
)
def test_what_is_not_there_is_measured_again(changes, races, tmp_path):
    """As of a later version, or edited."""
    first = algorithms.consult(GEOMETRY)
    file = tmp_path / "algorithms.json"
    whole = json.loads(file.read_text())
    (key,) = (key for key in whole["records"] if f"| {FORWARD} |" in key)
    record = whole["records"][key]
    more = dict(record["candidates"][0], name=[*changes.values()][0])
    record["candidates"].append(more)
    record["chosen"] = changes.get("chosen", record["chosen"])
    file.write_text(json.dumps(whole))
    forget()
    races.clear()
    for _ in range(2):
        choice = algorithms.choose(GEOMETRY)
    assert races == [FORWARD]
    assert choice.forward.refuses(GEOMETRY, FORWARD) is None
    found = json.loads(file.read_text())["records"]
    assert more["name"] not in json.dumps(found)
    assert found.keys() == whole["records"].keys()
    assert len(first) == len(found)


def test_folder_that_cannot_be_written(races, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "file" / "folder"))
    with pytest.warns(RuntimeWarning, match="Could not write") as caught:
        algorithms.choose(GEOMETRY)
        algorithms.consult(GEOMETRY, passes=[FORWARD], refresh=True)
    assert len(caught) == 1
    _choose._choices.clear()
    algorithms.choose(GEOMETRY)
    assert len(races) == len(PASSES) + 1


@pytest.mark.parametrize(
    ("folder", "xdg", "expected"),
    [
        ("/a", "/b", "/a/algorithms.json"),
        (None, "/b", "/b/tf_convpar/algorithms.json"),
        (None, None, "/home/me/.cache/tf_convpar/algorithms.json"),
    ],
)
def test_place_of_the_file(folder, xdg, expected, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in ((cache.FOLDER, folder), ("XDG_CACHE_HOME", xdg)):
        monkeypatch.setenv(name, value or "")
    assert str(cache.path()) == expected
