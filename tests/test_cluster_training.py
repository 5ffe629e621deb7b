"""Three real processes: the same losses, and no byte more than needed."""

import json
import subprocess
import sys
from pathlib import Path

import forks
import pytest

from tf_convpar.cluster.local_cluster import local_workers

PROGRAMS = Path(__file__).parent / "programs"


def run(local, program, *args):
    """What a chief program found."""
    return forks.found([PROGRAMS / program, *args], local.env())


OPTIMIZERS = ("momentum", "adam", "rmsprop")


@pytest.mark.parametrize(
    ("kind", "policy", "limits"),
    [
        ("kinked", "float64", {"momentum": 1e-9}),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                # Those of oneDNN differ by how many samples there are.
                ("smooth", "float32", dict.fromkeys(OPTIMIZERS, 1e-4)),
                ("kinked", "float64", dict.fromkeys(OPTIMIZERS, 1e-9)),
            )
        ),
    ],
)
def test_losses_of_20_steps_equal_plain_keras(kind, policy, limits, cluster):
    results = run(cluster, "losses.py", kind, policy, *limits)
    assert len(set(results["devices"])) == 3
    for name, limit in limits.items():
        result = results[name]
        print(f"{kind} {policy} {name}: {result}")
        assert result["steps"] == 20
        assert result["last"] < 0.9 * result["first"]  # It does learn.
        assert result["difference"] < limit


CASES = {
    "float32": {},
    "bfloat16 on the wire": {"wire": "bfloat16"},
    "clipping": {
        "optimizer": {
            "class_name": "Adam",
            "config": {"global_clipnorm": 0.1},
        }
    },
    "gradient accumulation": {
        "optimizer": {
            "class_name": "Adam",
            "config": {"gradient_accumulation_steps": 2},
        }
    },
    "regularizer and constraint": {
        "regularizer": "l2",
        "constraint": "unit_norm",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "cases",
    [
        ("float32", "bfloat16 on the wire", "gradient accumulation"),
        pytest.param(
            ("clipping", "regularizer and constraint"), marks=pytest.mark.slow
        ),
    ],
)
def test_bytes_on_the_wire_are_those_of_the_star(cases, cluster):
    """Never a kernel, never a slot: 0.6 MB of them would be 4% to 8%."""
    options = [{"shards": [2, 2, 1], **CASES[case]} for case in cases]
    results = run(cluster, "star.py", json.dumps(options))
    for case, result in zip(cases, results, strict=True):
        print(f"{case}: {result['measured'] / result['theory']:.4f} of theory")
        assert result["measured"] == pytest.approx(result["theory"], rel=0.03)
        assert len(set(result["kernels"])) == 3
        assert result["slots"]
        for devices in result["slots"]:
            assert devices == result["kernels"]


def test_what_a_keras_user_does(cluster, tmp_path):
    result = run(cluster, "everything.py", str(tmp_path))
    assert result["losses"][-1] < result["losses"][0]
    assert result["accuracy"] > 0.2
    assert result["evaluated"] == pytest.approx(result["predicted"], abs=0.01)
    for difference in ("reloaded", "restored", "served"):
        assert result[difference] < 1e-5
    assert result["files"] == [
        "epoch1.keras",
        "epoch2.keras",
        "epoch3.keras",
        "model.keras",
    ]
    tasks = [
        "/job:chief/replica:0/task:0/device:CPU:0",
        "/job:worker/replica:0/task:0/device:CPU:0",
        "/job:worker/replica:0/task:1/device:CPU:0",
    ]
    assert result["devices"] == [tasks, tasks[1:]]


@pytest.mark.slow
def test_a_worker_lost_between_two_calls_raises_at_once():
    with local_workers(1) as local:
        chief = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "two_fits.py")],
            env=local.env(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert chief.stdout.readline() == "trained\n"
            local.workers[0].kill()
            output, _ = chief.communicate("go on\n", timeout=60)
        finally:
            chief.kill()
            chief.wait()
    assert output.startswith("unavailable:")
