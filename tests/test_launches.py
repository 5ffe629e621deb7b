"""Workers of another `convpar launch` are refused; those of nobody are not."""

import json
import os
import signal
import sys

import forks
import psutil
import pytest
from cases import slow
from processes import CONVPAR
from processes import kill_tree
from processes import read_until
from processes import run
from processes import start
from test_cli_launch import _worker_of
from test_cli_launch import hosts as hosts
from test_cli_launch import ssh as ssh

from tf_convpar.cluster import launches
from tf_convpar.cluster.local_cluster import local_workers

OWN, OTHER = "0a" * 8, "0b" * 8
CHIEF = """
import tf_convpar as convpar
try:
    print("joined", len(convpar.ConvParallelStrategy().devices))
except RuntimeError as error:
    print("refused:", error)
"""
# Prints what becomes of workers in the place of one that was killed.
RETURN = """
import os, sys
import tf_convpar as convpar
from tf_convpar.cluster.joining import members
from tf_convpar.cluster.launches import VARIABLE
from tf_convpar.cluster.local_cluster import local_workers

own, other = os.environ[VARIABLE], sys.argv[1]
with local_workers(1) as local:
    os.environ["TF_CONFIG"] = local.tf_config()
    convpar.ConvParallelStrategy()
    found = members()
    for launch in (other, own):
        os.environ[VARIABLE] = launch
        local.restart(0)
        os.environ[VARIABLE] = own
        found.leave(task for task in found.lost() if task not in found.absent)
        back = found.returned()
        print("back", len(back))
        try:
            found.join(back)
            print("joined")
        except TimeoutError as error:
            print("refused:", error)
        print("absent", len(found.absent), "asked again", len(found.returned()))
"""
REFUSED = (
    "refused: Expected workers that this `convpar launch` has started. "
    "Received /job:worker/task:0 at localhost:"
)


@pytest.mark.parametrize(
    ("worker", "chiefs"),
    [
        slow((OTHER, {OWN: False, OTHER: True, None: True})),
        (None, {OWN: True}),
    ],
)
def test_workers_of_another_launch_are_refused(worker, chiefs, monkeypatch):
    monkeypatch.delenv(launches.VARIABLE, raising=False)
    if worker is not None:
        monkeypatch.setenv(launches.VARIABLE, worker)
    with local_workers(1) as local:
        for chief, joins in chiefs.items():
            monkeypatch.delenv(launches.VARIABLE, raising=False)
            own = {launches.VARIABLE: chief} if chief else {}
            done = forks.run(["-c", CHIEF], local.env() | own)
            assert ("joined 2" in done.stdout) is joins, done
            assert (REFUSED in done.stdout) is not joins, done


@pytest.mark.slow
def test_one_that_comes_in_the_place_of_a_lost_one_is_refused_once():
    code, output = run(
        [sys.executable, "-c", RETURN, OTHER], **{launches.VARIABLE: OWN}
    )
    assert code == 0, output
    lines = [
        line.partition(":")[0]
        for line in output.splitlines()
        if line.startswith(("back", "joined", "refused", "absent"))
    ]
    assert lines == [
        *("back 1", "refused", "absent 1 asked again 0"),
        *("back 1", "joined", "absent 0 asked again 0"),
    ], output
    assert REFUSED in output


WAITS = """
import os, signal
print("id", os.environ["CONVPAR_LAUNCH"], flush=True)
signal.pause()
"""


def id_of(pid):
    return psutil.Process(pid).environ()[launches.VARIABLE]


@pytest.mark.parametrize("over_ssh", [slow(False), True])
def test_all_that_a_launch_starts_has_its_id(over_ssh, program, ssh, hosts):
    where = ["-n", "2", "--restarts", "1"]
    if over_ssh:
        where = ["--hosts", hosts, "--ssh", "--python", sys.executable]
    ids = []
    for killed in (False, not over_ssh):
        launcher = start(
            [*CONVPAR, "launch", *where, program(WAITS)],
            # Of a launch that this one is within.
            **{launches.VARIABLE: OTHER, **(ssh[0] if over_ssh else {})},
        )
        try:
            found = read_until(launcher, "[chief] id ").split()[-1]
            worker = _worker_of(launcher)
            assert id_of(worker) == found
            if killed:
                os.kill(worker, signal.SIGKILL)
                read_until(launcher, "[worker 0] Ready")
                assert id_of(_worker_of(launcher)) == found
            ids.append(found)
        finally:
            kill_tree(launcher)
    assert len({*ids, OTHER}) == 3


def test_commands_that_are_run_by_hand_have_none():
    arguments = ["--hosts", "a:2222,b:2223", "--json", "train.py"]
    code, output = run([*CONVPAR, "launch", *arguments])
    assert code == 0
    assert launches.VARIABLE not in json.dumps(json.loads(output))
