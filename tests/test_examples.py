"""Every example runs, and does what it says."""

import re
import sys

from processes import CONVPAR
from processes import ROOT
from processes import run

EXAMPLES = ROOT / "examples"


def accuracies(output):
    return [float(a) for a in re.findall(r"val_accuracy: ([\d.]+)", output)]


def test_single_machine():
    code, output = run([sys.executable, EXAMPLES / "single_machine.py"])
    assert code == 0, output
    assert accuracies(output)[-1] > 0.6
    assert "shards=(12, 4)" in output
    assert "shards=(48, 16)" in output


def test_multi_machine():
    program = EXAMPLES / "multi_machine.py"
    code, output = run([*CONVPAR, "launch", "-n", 3, program])
    assert code == 0, output
    assert accuracies(output)[-1] > 0.6
    for share, task in ((22, "chief"), (21, "worker"), (21, "worker")):
        assert re.search(rf"{share} of 64 kernels on /job:{task}", output)


def test_export_and_serve():
    code, output = run([sys.executable, EXAMPLES / "export_and_serve.py"])
    assert code == 0, output
    found = re.search(r"difference of the scores: (\S+)", output)
    assert float(found.group(1)) < 1e-5
