"""Keras programs as people write them: as they are, and the same numbers.

Each runs plain, with its convolutions exchanged, and with `parallelize`, in a
chief of three processes. The chief stays for the next program, since to start
one takes longer than most programs do.
"""

import contextlib
import json
import queue
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from keras_programs import PROGRAMS
from keras_programs._compare import arrays
from keras_programs._compare import difference

from tf_convpar.cluster.local_cluster import local_workers

RUNNER = Path(__file__).parent / "programs" / "keras_programs.py"
LIMIT_S = 240


@contextlib.contextmanager
def chief():
    """A cluster; yields a function that has its chief run a program."""
    lines = queue.Queue()

    def read():
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    def run(name):
        process.stdin.write(f"{name}\n")
        process.stdin.flush()
        line = lines.get(timeout=LIMIT_S)
        if line is None:
            errors.seek(0)
            raise AssertionError(
                f"The chief ended in {name}:\n{errors.read()[-4000:]}"
            )
        for worker in local.workers:
            if worker.returncode is not None:
                raise AssertionError(
                    f"A worker ended in {name}:\n{worker.output[-4000:]}"
                )
        return json.loads(line)

    with (
        local_workers(2) as local,
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [sys.executable, str(RUNNER), "-"],
            env=local.env(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield run
        finally:
            process.kill()
            reader.join()


@pytest.fixture(scope="module")
def report_of():
    """Runs a program by its name; a chief that it took down is replaced."""
    with contextlib.ExitStack() as stack:
        chiefs = []

        def run(name):
            if not chiefs:
                chiefs.append(stack.enter_context(chief()))
            try:
                return chiefs[0](name)
            except BaseException:
                chiefs.clear()
                stack.close()
                raise

        yield run


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if program.quick else pytest.mark.slow)
        for name, program in PROGRAMS.items()
    ],
)
def test_a_program_runs_as_it_is_and_gives_the_same_numbers(name, report_of):
    program, report = PROGRAMS[name], report_of(name)
    print(json.dumps(report))
    failed = {
        mode: [*report[mode]["trace"], report[mode]["error"]]
        for mode in ("plain", "exchanged", "parallelize")
        if not report[mode]["ok"]
    }
    assert not failed, json.dumps(failed, indent=1)
    losses = report["plain"]["losses"]
    assert len(set(losses)) > 1  # Equal numbers of nothing are no success.
    if program.falls:
        assert losses[-1] < losses[0]
    for mode in ("exchanged", "parallelize"):
        found = report[mode]
        assert found["difference of losses"] <= program.tolerance, mode
        assert found["difference of predictions"] <= program.tolerance, mode
        assert found["devices"] == (3 if mode in program.split else 1), mode


@pytest.mark.parametrize(
    "other",
    [
        [[1.0, 2.0], 3e-3 * (1 + 1e-8)],  # Small beside others, and alone.
        [[1.0, 2.0 + 1e-8], 3e-3],
        [[1.0, np.nan], 3e-3],
        [[1.0], 3e-3],
        [[1.0, 2.0]],
    ],
)
def test_a_comparison_can_fail(other):
    numbers = [[1.0, 2.0], 3e-3]
    assert difference(arrays(numbers), arrays(numbers)) == 0
    assert difference(arrays(other), arrays(numbers)) > 1e-9
    assert difference(arrays(numbers), arrays(other)) > 1e-9
