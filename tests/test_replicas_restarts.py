"""Trainings of replicas whose program dies, alone or with all its machines."""

import contextlib
import json
import os
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from processes import CONVPAR
from processes import kill_tree
from processes import read_until
from processes import run
from processes import start
from programs import replicas_kept
from replica_cases import DEVICES

from tf_convpar.cluster.local_cluster import reserved_port

PROGRAM = Path(__file__).parent / "programs/replicas_kept.py"
STEPS = [
    [epoch, step]
    for epoch in range(replicas_kept.EPOCHS)
    for step in range(replicas_kept.STEPS)
    if (step + 1) % replicas_kept.EVERY == 0
]


@pytest.fixture(scope="module")
def undisturbed():
    """By devices of this process, without backups."""
    return replicas_kept.fit(DEVICES)


def in_folder(folder, line):
    folder.mkdir(exist_ok=True)
    return ["env", "-C", folder, *line]


def check(output, undisturbed, first):
    """It went on after so many rounds, to where it would have come."""
    epoch, step = divmod(first * replicas_kept.EVERY, replicas_kept.STEPS)
    where = f"goes on from round {first} (epoch {epoch + 1}, step {step}), kept"
    assert where in output
    found = json.loads(re.search(r'{"steps".*', output)[0])
    assert found["steps"] == STEPS[first:]
    for a, b in zip(found["weights"], undisturbed["weights"], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert found["loss"] == pytest.approx(undisturbed["loss"], rel=1e-5)


def rounds(output):
    """How many were made."""
    return len(re.findall(r"step \d+ \d+", output))


def test_a_killed_chief_is_started_again_and_goes_on(tmp_path, undisturbed):
    """It dies while replicas learn; its workers begin anew with it."""
    line = [*CONVPAR, "launch", "-n", "3", "--restarts", "2", PROGRAM]
    code, output = run(in_folder(tmp_path, [*line, "backups", 1, 4]))
    assert code == 0, output
    before, after = output.split("chief ended with signal SIGKILL; starting it")
    check(after, undisturbed, rounds(before))
    assert "kept by chief 0, worker 0, worker 1." in after
    assert rounds(before) >= 3


@pytest.mark.slow  # As the one before, from the files of the backups.
def test_the_same_command_goes_on_when_all_were_killed(tmp_path, undisturbed):
    line = [*CONVPAR, "launch", "-n", "3", PROGRAM, "backups"]
    line = in_folder(tmp_path, line)
    launcher = start(line, SLOW="0.3")
    try:
        before = read_until(launcher, "step 1 3")
    finally:
        kill_tree(launcher)
    code, after = run(line)
    assert code == 0, after
    check(after, undisturbed, rounds(before))
    assert rounds(before) == 3


@contextlib.contextmanager
def machines(ports, folders, **changes):
    """The chief's process, and workers that end with the context.

    Each has a folder of its own in the place of a machine.
    """
    with contextlib.ExitStack() as stack:
        cluster = {
            "chief": [f"localhost:{ports[0]}"],
            "worker": [f"localhost:{port}" for port in ports[1:]],
        }
        for i, folder in reversed(list(enumerate(folders))):
            job, index = ("worker", i - 1) if i else ("chief", 0)
            own = {"cluster": cluster, "task": {"type": job, "index": index}}
            line = [PROGRAM, "backups"] if job == "chief" else []
            process = start(
                in_folder(
                    folder,
                    [CONVPAR[0], *line] if line else [*CONVPAR, "worker"],
                ),
                TF_CONFIG=json.dumps(own),
                **changes,
            )
            stack.callback(kill_tree, process)
        yield process


@pytest.mark.slow
def test_only_one_machine_is_left_and_has_the_chief_now(tmp_path, undisturbed):
    """The others get the common weights from it, over the wire."""
    folders = [tmp_path / name for name in "abc"]
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(reserved_port()) for _ in range(3)]
        with machines(ports, folders, SLOW="0.3") as chief:
            before = read_until(chief, "step 1 3")
        for folder in folders[:2]:
            assert list((folder / "backups").glob("*/*.index"))
            shutil.rmtree(folder)
        # Two new ones, and the old one's number is another.
        with machines(ports, folders[::-1]) as chief:
            after, _ = chief.communicate(timeout=90)
    check(after, undisturbed, rounds(before))
    assert "kept by chief 0; worker 0, worker 1 took it over." in after
    for folder in folders:
        assert list((folder / "backups").glob("*/*.index"))


@pytest.mark.slow
def test_workers_that_live_on_take_another_chief(tmp_path, undisturbed):
    """Nobody starts them anew, where `convpar launch` has not started them."""
    folders = [tmp_path / name for name in "abc"]
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(reserved_port()) for _ in range(3)]
        with machines(ports, folders, SLOW="0.3") as chief:
            before = read_until(chief, "step 1 3")
            config = environment_of(chief)
            os.kill(chief.pid, signal.SIGKILL)
            chief.wait()
            line = in_folder(folders[0], [CONVPAR[0], PROGRAM, "backups"])
            code, after = run(line, TF_CONFIG=config)
    assert code == 0, after
    check(after, undisturbed, rounds(before))


def environment_of(process):
    text = Path(f"/proc/{process.pid}/environ").read_text()
    return dict(v.split("=", 1) for v in text.split("\0") if v)["TF_CONFIG"]
