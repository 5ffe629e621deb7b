"""Files for clusters that people have: who is told what, and that it trains."""

import contextlib
import json
import os
import re
import shutil
import signal
import sys

import containers
import pytest
from processes import CONVPAR
from processes import ROOT
from processes import kill_tree
from processes import run
from processes import start

from tf_convpar.cluster.local_cluster import reserved_port
from tf_convpar.cluster.spec import resolve

FOLDER = ROOT / "examples/clusters"
READERS = {
    "jobset.yaml": containers.of_jobset,
    "compose.yaml": containers.of_compose,
}


@pytest.mark.parametrize("file", READERS)
def test_every_container_has_a_place_of_its_own(file, monkeypatch):
    found, _ = READERS[file](FOLDER / file)
    clusters = []
    for container in found:
        monkeypatch.setenv("TF_CONFIG", container.env["TF_CONFIG"])
        cluster = resolve()
        assert cluster.task.host == container.host
        program = [os.path.basename(word) for word in container.command[:2]]
        assert program == (
            ["python", "train.py"]
            if cluster.is_chief
            else ["convpar", "worker"]
        )
        clusters.append(cluster)
    assert len(clusters) == 3
    assert {cluster.task for cluster in clusters} == {*clusters[0].tasks}


def test_the_chief_ends_a_jobset_and_others_reach_no_port(monkeypatch):
    found, objects = containers.of_jobset(FOLDER / "jobset.yaml")
    jobset, policy = objects
    assert jobset["spec"]["successPolicy"] == {
        "operator": "All",
        "targetReplicatedJobs": ["chief"],
    }
    monkeypatch.setenv("TF_CONFIG", found[0].env["TF_CONFIG"])
    ports = {task.port for task in resolve().tasks}
    pods = {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": "train"}}
    assert jobset["metadata"]["name"] == "train"
    assert policy["spec"]["podSelector"] == pods
    (rule,) = policy["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": pods}]
    assert {port["port"] for port in rule["ports"]} == ports


def test_workers_of_compose_are_in_a_network_without_a_way_in():
    found, content = containers.of_compose(FOLDER / "compose.yaml")
    assert content["networks"]["tasks"]["internal"] is True
    for container in found:
        networks = content["services"][container.host]["networks"]
        assert "tasks" in networks
        assert (networks == ["tasks"]) == container.host.startswith("worker")
        assert "ports" not in content["services"][container.host]


@pytest.mark.slow
@pytest.mark.parametrize("file", READERS)
def test_it_trains(file):
    """With names of hosts that are this machine, and ports that are free."""
    found, _ = READERS[file](FOLDER / file)
    chief, *workers = found
    with contextlib.ExitStack() as stack:
        ports = {
            each.host: stack.enter_context(reserved_port()) for each in found
        }

        def config(container):
            return re.sub(
                r'"([\w.-]+):2222"',
                lambda name: f'"localhost:{ports[name[1]]}"',
                container.env["TF_CONFIG"],
            )

        started = []
        for worker in workers:
            command = [*CONVPAR, *worker.command[1:]]
            env = {**worker.env, "TF_CONFIG": config(worker)}
            started.append(start(command, **env))
            stack.callback(kill_tree, started[-1])
        code, output = run(
            [sys.executable, ROOT / "tests/programs/two_steps.py"],
            **{**chief.env, "TF_CONFIG": config(chief)},
        )
        assert code == 0, output
        devices = json.loads(output.splitlines()[-1])["devices"]
        assert len(set(devices)) == 3
        for worker in started:
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(timeout=10) == 0


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("slurmctld"),
    reason="needs root, and Slurm (Debian: slurm-wlm)",
)
def test_a_real_slurm_of_two_nodes():
    program = f"{sys.executable} {ROOT}/tests/programs/two_steps.py"
    code, output = run(
        ["bash", FOLDER / "slurm_lab.sh", f"srun -N2 -n3 -m cyclic {program}"]
    )
    assert code == 0, output
    (line,) = (line for line in output.splitlines() if '"losses"' in line)
    assert len(set(json.loads(line)["devices"])) == 3
    assert "at node2:" in output
    assert output.count("ending this worker") == 2
