"""Copies of `Elastic` in files: who goes on from them, and what is none."""

import io
import json
import os
from pathlib import Path

import forks
import numpy as np
import pytest
from processes import CONVPAR
from processes import run
from replica_cases import data
from replica_cases import network

import tf_convpar as convpar
from tf_convpar.callbacks import snapshot_file

PROGRAM = Path(__file__).parent / "programs/elastic_chief.py"


def test_a_killed_program_goes_on_from_its_copy(tmp_path):
    """In the middle of an epoch; at its end nothing is left of the copy."""
    run = [PROGRAM, tmp_path / "copies"]
    assert forks.run([*run, 2, 7], dict(os.environ)).returncode == -9
    copies = tmp_path / "copies"
    # It may have been killed while it wrote another one.
    left = copies / ".elastic.npz.0123abcd.part"
    left.write_bytes(bytes(10))
    assert (copies / "elastic.npz").exists()
    _, _, (epoch, step) = snapshot_file.load(copies)
    assert [path.name for path in copies.iterdir()] == ["elastic.npz"]
    assert (0, 0) < (epoch, step) <= (2, 8)
    found = forks.found(run, dict(os.environ))
    expected = forks.found([run[0], "-"], dict(os.environ))
    # Batches that were learned from are passed over.
    assert len(expected["steps"]) == 4 * 12
    assert found["steps"] == expected["steps"][12 * epoch :]
    for a, b in zip(found["state"], expected["state"], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert not list(copies.iterdir())


@pytest.mark.slow
def test_a_copy_of_the_last_step_of_an_epoch(tmp_path):
    """None of the epoch is left: its metrics have no result."""
    copies = tmp_path / "copies"
    run = [PROGRAM, copies]
    assert forks.run([*run, 1, 3], dict(os.environ)).returncode == -9
    names, values, (epoch, _) = snapshot_file.load(copies)
    snapshot_file.save(copies, names, values, (epoch, 12))
    found = forks.found(run, dict(os.environ))
    assert len(found["steps"]) == (4 - epoch) * 12
    assert not list(copies.iterdir())


@pytest.mark.slow  # The launcher and the copy have tests of their own.
def test_a_killed_chief_is_started_again_and_goes_on(tmp_path):
    """With all its workers; the output of the program is found in the end."""
    line = [*CONVPAR, "launch", "-n", "3", "--restarts", "1", PROGRAM]
    code, output = run([*line, tmp_path / "copies", 2, 7])
    assert code == 0, output
    assert "chief ended with signal SIGKILL; starting it again" in output
    assert "going on after step" in output
    found = json.loads(output[output.rindex('[chief] {"state"') + 8 :])
    expected = forks.found([PROGRAM, "-"], dict(os.environ))
    for a, b in zip(found["state"], expected["state"], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_what_is_no_copy_of_the_model(strategy, tmp_path):
    arrays = [np.ones(3, "float32"), np.arange(5)]
    snapshot_file.save(tmp_path, ["a", "b"], arrays, (2, 3))
    names, values, place = snapshot_file.load(tmp_path)
    assert (names, place) == (["a", "b"], (2, 3))
    for a, b in zip(values, arrays, strict=True):
        np.testing.assert_array_equal(a, b)
    x, y = data()
    with strategy.scope():
        model = convpar.parallelize(network(), "equal")
    elastic = convpar.callbacks.Elastic(tmp_path)
    with pytest.raises(ValueError, match="of this model.*is 'a' of float32"):
        model.fit(x, y, verbose=0, callbacks=[elastic])
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    # A byte of an array, half of the file, something else, what runs code.
    flipped = bytearray(whole)
    flipped[whole.index(arrays[1].tobytes())] ^= 1
    with io.BytesIO() as code:
        np.save(code, np.array([print], object), allow_pickle=True)
        for content in (
            *(bytes(flipped), whole[: len(whole) // 2], b"", b"{}"),
            code.getvalue(),
        ):
            file.write_bytes(content)
            with pytest.raises(
                ValueError, match=r"has written\. Received.*npz"
            ):
                snapshot_file.load(tmp_path)


@pytest.mark.parametrize("place", [(-1, 3), (2, -3), (2,), (1, 2, 3)])
def test_a_copy_of_no_place(place, tmp_path):
    snapshot_file.save(tmp_path, ["a"], [np.ones(3)], place)
    with pytest.raises(ValueError, match=r"has written\. Received.*anew"):
        snapshot_file.load(tmp_path)


def test_a_folder_that_cannot_be_written_is_no_end(strategy, tmp_path):
    (tmp_path / "file").touch()
    x, y = data()
    with strategy.scope():
        model = convpar.parallelize(network(), "equal")
    elastic = convpar.callbacks.Elastic(tmp_path / "file", every=1e-3)
    with pytest.warns(RuntimeWarning, match="Could not write a snapshot"):
        model.fit(x, y, batch_size=16, verbose=0, callbacks=[elastic])
