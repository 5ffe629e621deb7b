"""Every example runs, and does what it says."""

import re
import sys

import forks
import pytest
from processes import CONVPAR
from processes import ROOT
from processes import environment
from processes import run

EXAMPLES = ROOT / "examples"


def accuracies(output):
    return [float(a) for a in re.findall(r"val_accuracy: ([\d.]+)", output)]


def test_single_machine():
    done = forks.run([EXAMPLES / "single_machine.py"], env=environment())
    output = done.stdout
    assert done.returncode == 0, done.stderr
    assert accuracies(output)[-1] > 0.6
    assert "shards=(12, 4)" in output
    assert "shards=(48, 16)" in output


@pytest.mark.slow  # test_cli_launch.py and test_cluster_training.py, too.
def test_multi_machine():
    program = EXAMPLES / "multi_machine.py"
    code, output = run([*CONVPAR, "launch", "-n", 3, program])
    assert code == 0, output
    assert accuracies(output)[-1] > 0.6
    for share, task in ((22, "chief"), (21, "worker"), (21, "worker")):
        assert re.search(rf"{share} of 64 kernels on /job:{task}", output)


@pytest.mark.slow  # test_export.py does as much.
def test_export_and_serve():
    code, output = run([sys.executable, EXAMPLES / "export_and_serve.py"])
    assert code == 0, output
    found = re.search(r"difference of the scores: (\S+)", output)
    assert float(found.group(1)) < 1e-5


def printed(program, *args, processes=1):
    command = [sys.executable] if processes == 1 else [*CONVPAR, "launch"]
    count = [] if processes == 1 else ["-n", processes]
    code, output = run([*command, *count, EXAMPLES / program, *args])
    assert code == 0, output
    return output


@pytest.mark.slow
def test_unet_on_two_processes():
    output = printed("unet.py", processes=2)
    assert float(re.search(r"overlap: (\S+)", output)[1]) > 0.7
    assert re.search(r"4 on chief 0 CPU:0, 4 on worker 0 CPU:0", output)


@pytest.mark.slow
def test_signals():
    output = printed("signals.py")
    error, still = re.search(r"error: (\S+); .*: (\S+)", output).groups()
    assert float(error) < 0.8 * float(still)


@pytest.mark.slow
def test_volumes():
    assert accuracies(printed("volumes.py"))[-1] > 0.9


@pytest.mark.slow
def test_wire_dtype_on_two_processes():
    output = printed("wire_dtype.py", "--seeds=1", "--epochs=2", processes=2)
    found = re.findall(r"accuracy (\S+) .* (\S+) MB", output)
    (wide, wide_mb), (narrow, narrow_mb) = found
    assert abs(float(wide) - float(narrow)) < 0.1
    assert float(narrow_mb) < 0.55 * float(wide_mb)


@pytest.mark.slow
def test_towers_on_three_processes():
    output = printed("towers.py", processes=3)
    for size, place in ((5, "worker 0"), (7, "worker 1")):
        assert re.search(rf"tower{size}_conv1 │ 16 on {place} CPU:0", output)
    assert accuracies(output)[-1] > 0.85
    # Images to two towers, and what these found and its gradients.
    expected = 2 * 50 * 4 * (32 * 32 + 2 * 8 * 8 * 16) / 1e6
    assert f"bytes of a step: {expected:.2f} MB" in output
