"""A step of Slurm: what srun tells its tasks, and tasks that it started."""

import concurrent.futures
import contextlib
import json
import re
import socket

import forks
import pytest
from processes import ROOT
from processes import environment

from tf_convpar.cluster import joining
from tf_convpar.cluster import server
from tf_convpar.cluster import slurm
from tf_convpar.cluster.local_cluster import reserved_port
from tf_convpar.cluster.spec import resolve

STEP = {
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_NODEID": "0",
    "SLURM_LOCALID": "1",
}


# What `scontrol show hostnames` of Slurm 22.05 prints.
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", "node1"),
        ("node[1-3,7]", "node1 node2 node3 node7"),
        ("node[001-003,7],a", "node001 node002 node003 node7 a"),
        ("a1,b[2-3],c", "a1 b2 b3 c"),
        ("n[09-11]", "n09 n10 n11"),
        ("n[9-11]", "n9 n10 n11"),
        ("n[007-9]", "n007 n008 n009"),
        ("n3,n1,n2", "n3 n1 n2"),
        ("node-1.example.org", "node-1.example.org"),
        (
            "rack[0-1]_blade[08-10]",
            "rack0_blade08 rack0_blade09 rack0_blade10 "
            "rack1_blade08 rack1_blade09 rack1_blade10",
        ),
    ],
)
def test_names_of_nodes(text, names):
    assert list(slurm.hostnames(text)) == names.split()


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "text",
    [
        *("", "n[", "n[1", "n]", "n[]", "n[2-1]", "n[a-b]", "a,,b", "a b"),
        *(f"{'n' * 60}[", "n[1-999999999999]", "n[1-2-3]"),
    ],
)
def test_what_is_no_list_of_nodes(text):
    with pytest.raises(ValueError, match="Expected SLURM_STEP_NODELIST as"):
        list(slurm.hostnames(text))


def test_tasks_node_by_node():
    addresses = slurm.step(STEP).addresses
    assert [a.rpartition(":")[0] for a in addresses] == [
        *("node1", "node1", "node2")
    ]
    first, second, other = (int(a.rpartition(":")[2]) for a in addresses)
    assert second == first + 1
    assert other == first
    # srun -m cyclic deals ranks in turn: this would be the second of three.
    last = {**STEP, "SLURM_NODEID": "1", "SLURM_LOCALID": "0"}
    assert slurm.step(last) == slurm.Step(addresses, 2)


def test_many_nodes():
    counts = {"SLURM_STEP_TASKS_PER_NODE": "2(x3),1"}
    nodes = {"SLURM_STEP_NODELIST": "n[1-4]", "SLURM_STEP_NUM_TASKS": "7"}
    found = slurm.step({**STEP, **counts, **nodes}).addresses
    hosts = [a.rpartition(":")[0] for a in found]
    assert hosts == "n1 n1 n2 n2 n3 n3 n4".split()
    assert len(set(found)) == 7


def ports(**changes):
    found = slurm.step({**STEP, **changes}).addresses
    return [int(address.rpartition(":")[2]) for address in found]


def test_ports():
    assert ports(TF_CONVPAR_SLURM="23456") == [23456, 23457, 23456]
    reserved = {"SLURM_STEP_RESV_PORTS": "12001,12005-12006"}
    assert ports(**reserved) == [12001, 12005, 12001]
    assert ports(**reserved, TF_CONVPAR_SLURM="23456")[0] == 23456
    # One was reserved, two are needed.
    assert ports(SLURM_STEP_RESV_PORTS="12001") == ports()
    # Neighbours on one node do not meet.
    near = [ports(SLURM_JOB_ID=str(job)) for job in range(500, 1500)]
    taken = [port for found in near for port in set(found)]
    assert len(taken) == len(set(taken)) == 2000
    assert min(taken) >= 1024
    assert max(taken) < 32768


@pytest.mark.parametrize(
    "changes",
    [
        {"TF_CONVPAR_SLURM": "0"},
        {
            "SLURM_STEP_NODELIST": "node1",
            "SLURM_STEP_TASKS_PER_NODE": "1",
            "SLURM_STEP_NUM_TASKS": "1",
        },
    ],
    ids=["told so", "one task"],
)
def test_no_cluster(changes):
    assert slurm.step({**STEP, **changes}) is None


def test_no_step():
    assert slurm.step({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}) is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"SLURM_LOCALID": None}, "SLURM_LOCALID of each task"),
        ({"SLURM_LOCALID": "2"}, "those of a task of 2,1. Received: 0 and 2"),
        ({"SLURM_NODEID": "-1"}, "SLURM_NODEID as Slurm writes it"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2x1"}, "such as 2(x3),1"),
        # A step of a heterogeneous job counts all, and lists a part.
        ({"SLURM_STEP_NUM_TASKS": "5"}, "2,1 for 5 tasks"),
        ({"SLURM_STEP_NODELIST": "node[1-3]"}, "Received 3 nodes"),
        ({"TF_CONVPAR_SLURM": "yes"}, "the first of 2 port(s)"),
        ({"TF_CONVPAR_SLURM": "65535"}, "from 1024 to 65534"),
    ],
)
def test_what_srun_does_not_write(changes, told):
    environ = {**STEP, **changes}
    with pytest.raises(ValueError, match="Expected") as error:
        slurm.step({k: v for k, v in environ.items() if v is not None})
    assert told in str(error.value)


def test_tf_config_goes_first(monkeypatch):
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)
    cluster = resolve()
    assert cluster.one_program
    assert str(cluster.task).startswith("/job:worker/task:0 at node1:")
    spec = {"chief": ["a:1"], "worker": ["b:1"]}
    task = {"type": "chief", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": spec, "task": task}))
    assert not resolve().one_program
    assert resolve().chief.address == "a:1"


def test_a_port_that_is_taken(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NODELIST", "node[1-2]")
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="export TF_CONVPAR_SLURM=23456"):
            joining.check_port_free(f"node1:{port}")


def srun(*command, tasks=3):
    """As `srun -n 3`, all on one node; what each task printed, and its code."""
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(reserved_port()) for _ in range(tasks)]
        step = STEP | {
            "SLURM_STEP_NODELIST": "127.0.0.[1]",
            "SLURM_STEP_TASKS_PER_NODE": str(tasks),
            "SLURM_STEP_NUM_TASKS": str(tasks),
            "SLURM_STEP_RESV_PORTS": ",".join(map(str, ports)),
        }
        pool = concurrent.futures.ThreadPoolExecutor(tasks)
        started = [
            pool.submit(
                forks.run,
                command,
                environment(**step | {"SLURM_LOCALID": str(index)}),
            )
            for index in range(tasks)
        ]
        return [each.result() for each in started]


def test_a_program_under_srun_trains_as_one_device_does():
    program = ROOT / "tests/programs/two_steps.py"
    chief, *workers = srun(program)
    assert chief.returncode == 0, chief.stderr[-4000:]
    found = json.loads(chief.stdout)
    alone = forks.found([program], environment(**STEP, TF_CONVPAR_SLURM="0"))
    assert len(set(alone["devices"])) == 1
    tasks = [re.match("/job:.*/task:.", name)[0] for name in found["devices"]]
    assert tasks == [
        "/job:chief/replica:0/task:0",
        "/job:worker/replica:0/task:0",
        "/job:worker/replica:0/task:1",
    ]
    assert found["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    assert found["losses"][1] < found["losses"][0]
    for index, worker in enumerate(workers):
        assert worker.returncode == 0, worker.stderr[-4000:]
        ready, over = worker.stdout.splitlines()
        assert ready.startswith(f"Ready: /job:worker/task:{index} at 127.0.0.1")
        assert over.startswith("The program of /job:chief/task:0 at 127.0.0.1:")


def test_workers_end_when_the_chief_fails_at_once():
    chief, worker = srun(ROOT / "tests/programs/two_steps.py", "fail", tasks=2)
    assert chief.returncode == 1
    assert "no data" in chief.stderr
    assert worker.returncode == 0
    assert "has ended" in worker.stdout


def test_a_chief_that_never_comes(monkeypatch, capfd):
    def end(code):
        raise SystemExit(code)

    monkeypatch.setattr(server, "CHIEF_S", 0.1)
    monkeypatch.setattr(server.os, "_exit", end)
    with reserved_port() as port, pytest.raises(SystemExit) as ended:
        server._end_with(joining.Task("chief", 0, f"127.0.0.1:{port}"))
    assert ended.value.code == 1
    assert "make the strategy early" in capfd.readouterr().out.lower()
