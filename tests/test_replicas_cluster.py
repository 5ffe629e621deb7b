"""Replicas on real worker processes: where they are, and what travels."""

from pathlib import Path

import forks
import pytest

from tf_convpar.planner import Arguments
from tf_convpar.planner import cycle_of

PROGRAM = Path(__file__).parent / "programs/replicas.py"

# Vectors that travel in a step, with two replicas and the centre elsewhere
# (variant 1), or with the first of them (2 and 3).
MESSAGES = {
    "SyncEASGD:1": 4,
    "SyncEASGD:3": 2,
    "SyncSGD": 2,
    "AsyncEASGD": 2,
    "ParallelSGD": 0,
}
ROUNDS = ["DiLoCo:float32", "DiLoCo:int8"]
# Two steps for a message, four for an answer.
PUSHES = "DownpourSGD:2"
GROUP = "SyncEASGD:group"
OTHERS = {
    "SyncEASGD:2": 2,
    "AsyncSGD": 2,
    "RoundRobinEASGD": 2,
}


def train(cluster, *names):
    return forks.found([PROGRAM, *names], cluster.env())


@pytest.fixture(scope="module")
def found(cluster):
    return train(cluster, "local", *MESSAGES, PUSHES, GROUP, *ROUNDS)


@pytest.fixture(scope="module")
def local(found):
    return found.pop("local")


def test_each_machine_makes_its_own_data(local):
    assert len({local["chief"], *local["numbers"]}) == 3
    assert local["batches"] == [8, 8]
    # Both have as many batches of eight.
    assert local["steps"] == 12


def test_replicas_live_on_workers(local, found):
    for name, case in found.items():
        for kind in ("weights", "data"):
            tasks = [device.split("/device")[0] for device in case[kind]]
            other = "worker/replica:0/task:1"
            if name == GROUP:
                other = "chief/replica:0/task:0"
            assert tasks == ["/job:worker/replica:0/task:0", f"/job:{other}"]


def test_replicas_learn(local, found):
    for name, case in found.items():
        assert case["losses"][-1] < case["losses"][0], name


@pytest.mark.parametrize("name", MESSAGES)
def test_one_message_each_way(found, name):
    check_bytes(found[name], MESSAGES[name])


@pytest.mark.parametrize("name", ROUNDS)
def test_rounds_send_what_they_say(found, name):
    """Each of the two sends half of it to be added, and half of the mean."""
    case = found[name]
    whole = 2 * case["vector"]
    bits = {"float32": 32, "int8": 8 + 32 / 256}[name.partition(":")[2]]
    assert abs(case["expected"] - whole * bits / 32) < 0.01 * whole * bits / 32
    assert abs(case["bytes"] - case["expected"]) < 0.03 * case["expected"]


def test_what_is_predicted_is_sent(found):
    """Into each of the two: of a step, and of a round of three."""
    case = found["SyncSGD"]
    assert abs(case["bytes"] - 2 * case["predicted"]) < 0.03 * case["vector"]
    for name in ROUNDS:
        case = found[name]
        assert abs(3 * 2 * case["predicted"] - case["expected"]) <= 6
        assert abs(case["bytes"] - case["expected"]) < 0.03 * case["expected"]


def test_who_pushes_seldom_fetches_seldom(found):
    case = found[PUSHES]
    cycle = cycle_of("DownpourSGD", Arguments(n_push=2, n_fetch=4))
    assert cycle.steps == 2
    # In an epoch of twelve messages: a replica that has one more than the
    # other may have fetched more, or less, than half of the time.
    expected = (1 + cycle.answers) * case["vector"]
    assert abs(case["bytes"] - expected) < 0.15 * case["vector"]


def test_what_a_group_sends(found):
    """Shards that the first device lacks, beside vectors and feature maps."""
    case = found[GROUP]
    assert case["shards"] == [
        f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(2)
    ]
    expected = 2 * case["vector"] + 2 * case["away"] + case["maps"]
    assert case["away"] > 0.5 * case["vector"]
    assert abs(case["bytes"] - expected) < 0.01 * expected


@pytest.mark.slow
def test_one_message_each_way_of_others(cluster):
    for name, case in train(cluster, *OTHERS).items():
        check_bytes(case, OTHERS[name])


def check_bytes(case, messages):
    expected = messages * case["vector"]
    # Beside vectors: the call, the rate, the state of metrics.
    assert abs(case["bytes"] - expected) < 0.03 * case["vector"]
