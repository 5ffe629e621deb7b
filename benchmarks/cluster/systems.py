"""The systems that are compared, and how each is started on the nodes."""

import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import steps
from nodes import Node

HERE = pathlib.Path(__file__).parent
PORT = 2222
TAIL = 12


class Failed(Exception):
    """A system made no steps; the message has the ends of its logs."""


class Program(NamedTuple):
    """What runs on a node; `reports` if it prints how long its steps took."""

    node: Node
    command: list
    env: dict
    reports: bool = False


def alone(nodes, case, options, plan):
    """Plain Keras on the first node."""
    command = [sys.executable, HERE / "alone.py", *_steps(case)]
    return [Program(nodes[0], command, {}, True)]


def one(nodes, case, options, plan):
    """This package, with the same algorithms, on the first node alone."""
    return convpar(nodes[:1], case, options, plan)


def apart(nodes, case, options, plan):
    """`one` on all nodes at once, each with its part of the samples.

    Nothing is exchanged: no way to share out these samples can be faster, as
    long as steps take as much as their samples do.
    """
    parts = steps.in_proportion(case.batch, case.shares)
    together = [f"--together={len(nodes)}"]
    found = []
    for node, samples in zip(nodes, parts, strict=True):
        own = dataclasses.replace(case, batch=samples)
        (program,) = convpar([node], own, options, plan)
        command = [*program.command, *together]
        found.append(program._replace(command=command))
    return found


def convpar(nodes, case, options, plan):
    """This package: a chief on the first node, workers on the others."""
    command = [sys.executable, HERE / "chief.py", *_steps(case)]
    command += ["--plan", _plan(plan, case)]
    if options.algorithm:
        command += ["--algorithm", options.algorithm]
    if options.wire_dtype:
        command += ["--wire-dtype", options.wire_dtype]
    if options.moments:
        command += ["--moments", options.moments]
    return tasks(nodes, command)


def sync_sgd(nodes, case, options, plan):
    """This package: a replica on each node, which exchange in each step."""
    return _replicas("SyncSGD", nodes, case, options)


def diloco(nodes, case, options, plan):
    """This package: a replica on each node, which meet every 50 steps."""
    return _replicas("DiLoCo", nodes, case, options)


def _replicas(method, nodes, case, options):
    command = [sys.executable, HERE / "replicas.py", *_steps(case)]
    command += ["--method", method]
    if options.algorithm:
        command += ["--algorithm", options.algorithm]
    command += ["--wire", options.wire]
    if len(set(case.shares)) > 1:
        command += ["--unequal", options.unequal]
    return tasks(nodes, command)


def tasks(nodes, command):
    """A chief with the command on the first node, workers on the others."""
    chief, *workers = nodes
    cluster = {"chief": [_address(chief)]}
    if workers:
        cluster["worker"] = [_address(node) for node in workers]
    found = [Program(chief, command, _tf_config(cluster, "chief", 0), True)]
    for i, node in enumerate(workers):
        command = [sys.executable, "-m", "tf_convpar", "worker", "--threads=1"]
        command += _listen(node)
        found.append(Program(node, command, _tf_config(cluster, "worker", i)))
    return found


def mwms(nodes, case, options, plan):
    """TensorFlow's MultiWorkerMirroredStrategy."""
    cluster = {"worker": [_address(node) for node in nodes]}
    command = [sys.executable, HERE / "peers" / "mwms.py", *_steps(case)]
    return [
        Program(
            node,
            command,
            _tf_config(cluster, "worker", i) | _modules(),
            reports=i == 0,
        )
        for i, node in enumerate(nodes)
    ]


def ddp(nodes, case, options, plan):
    """PyTorch's DistributedDataParallel, by gloo."""
    command = [options.torch_python, HERE / "peers" / "ddp.py", *_steps(case)]
    return [
        Program(
            node,
            command,
            {
                "MASTER_ADDR": nodes[0].address,
                "MASTER_PORT": str(PORT),
                "WORLD_SIZE": str(len(nodes)),
                "RANK": str(i),
                "GLOO_SOCKET_IFNAME": "eth0",
                "OMP_NUM_THREADS": "1",
                **_modules(),
            },
            reports=i == 0,
        )
        for i, node in enumerate(nodes)
    ]


def torch(nodes, case, options, plan):
    """PyTorch on the first node, alone."""
    return ddp(nodes[:1], case, options, plan)


SYSTEMS = {
    f.__name__: f
    for f in (
        *(alone, one, convpar, apart, sync_sgd, diloco),
        *(mwms, ddp, torch),
    )
}
BASELINES = ("alone", "one")
# Those that take a plan, an algorithm and a wire dtype.
OURS = ("one", "convpar", "apart")


def measure(programs, timeout, progress):
    """Runs programs on their nodes; returns what is reported of their steps.

    Where several report, it is the report of the one with the longest steps.
    All others are ended with those. `progress` is called with the last line of
    the first one's log, again and again.

    Raises:
        Failed: A program ended before its report, or time ran out.
    """
    with tempfile.TemporaryDirectory() as folder:
        logs = [pathlib.Path(folder) / f"node{i}" for i in range(len(programs))]
        meet = pathlib.Path(folder) / "meet"
        meet.mkdir()
        running = []
        try:
            for program, log in zip(programs, logs, strict=True):
                env = {**program.env, steps.MEET: str(meet)}
                running.append(program.node.start(program.command, log, **env))
            reporting = [
                log
                for program, log in zip(programs, logs, strict=True)
                if program.reports
            ]
            problem = _wait(running, reporting, logs[0], timeout, progress)
            reports = [_report(log) for log in reporting]
            if not all(reports):
                raise Failed(f"{problem}\n{_tails(logs)}")
            return max(reports, key=lambda report: report["step_s"])
        finally:
            for process, program in zip(running, programs, strict=False):
                program.node.end()
                process.wait()


def _wait(running, reporting, log, timeout, progress):
    """Waits until all have reported, any fails, or time is up; says why."""
    expected = f"Expected a report of steps within {timeout:.0f} s."
    stop = time.monotonic() + timeout
    while time.monotonic() < stop:
        if all(_report(file) for file in reporting):
            return ""
        for i, process in enumerate(running):
            # Other programs may end without error before the report is read.
            if process.poll():
                code = process.returncode
                return f"{expected} Received: node {i} ended with code {code}."
        if all(process.poll() is not None for process in running):
            return f"{expected} Received: all have ended without one."
        progress((_lines(log) or ["starting"])[-1])
        time.sleep(0.5)
    return f"{expected} Received: none."


def _report(log):
    """The line of JSON in a log, if there is one."""
    for line in reversed(_lines(log)):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except json.JSONDecodeError:
                return None
    return None


def _tails(logs):
    """The end of each node's log."""
    return "\n".join(
        f"--- {log.name}\n" + "\n".join(_lines(log)[-TAIL:])
        for log in logs
        if log.exists()
    )


def _lines(log):
    if not log.exists():
        return []
    return log.read_text(errors="replace").splitlines()


def _steps(case):
    return [
        f"--model={case.model}",
        f"--pixels={case.pixels}",
        f"--batch={case.batch}",
        f"--classes={case.classes}",
        f"--warm-up={case.warm_up}",
        f"--steps={case.steps}",
    ]


def _plan(plan, case):
    """The plan for `chief.py`; "shares" is in proportion to nodes' shares."""
    return json.dumps({".*": case.shares}) if plan == "shares" else plan


def _tf_config(cluster, job, index):
    task = {"type": job, "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def _address(node):
    return f"{node.address}:{PORT}"


def _listen(node):
    """Arguments that let others reach a worker, if it knows of any."""
    return ["--listen", node.address] if "--listen" in _worker_help() else []


@functools.cache
def _worker_help():
    command = [sys.executable, "-m", "tf_convpar", "worker", "--help"]
    return subprocess.run(command, capture_output=True, text=True).stdout


def _modules():
    """Lets the peers import what all systems share."""
    known = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [known])])}
