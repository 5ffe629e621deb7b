"""The systems that are compared, and how each is started on the nodes."""

import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
PORT = 2222
TAIL = 12


class Failed(Exception):
    """A system made no steps; the message has the ends of its logs."""


def alone(nodes, case, options, plan):
    """Plain Keras on the first node."""
    return [(nodes[0], [sys.executable, HERE / "alone.py", *_steps(case)], {})]


def convpar(nodes, case, options, plan):
    """This package: a chief on the first node, workers on the others."""
    command = [sys.executable, HERE / "chief.py", *_steps(case)]
    command += ["--plan", _plan(plan, case)]
    if options.algorithm:
        command += ["--algorithm", options.algorithm]
    if options.wire_dtype:
        command += ["--wire-dtype", options.wire_dtype]
    return tasks(nodes, command)


def tasks(nodes, command):
    """A chief that runs the command on the first node, workers on the others.

    Of each the node, the command and the environment.
    """
    chief, *workers = nodes
    cluster = {"chief": [_address(chief)]}
    if workers:
        cluster["worker"] = [_address(node) for node in workers]
    found = [(chief, command, _tf_config(cluster, "chief", 0))]
    for i, node in enumerate(workers):
        command = [sys.executable, "-m", "tf_convpar", "worker", "--threads=1"]
        command += _listen(node)
        found.append((node, command, _tf_config(cluster, "worker", i)))
    return found


def mwms(nodes, case, options, plan):
    """TensorFlow's MultiWorkerMirroredStrategy."""
    cluster = {"worker": [_address(node) for node in nodes]}
    command = [sys.executable, HERE / "peers" / "mwms.py", *_steps(case)]
    return [
        (node, command, _tf_config(cluster, "worker", i) | _modules())
        for i, node in enumerate(nodes)
    ]


def ddp(nodes, case, options, plan):
    """PyTorch's DistributedDataParallel, by gloo."""
    command = [options.torch_python, HERE / "peers" / "ddp.py", *_steps(case)]
    return [
        (
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
        )
        for i, node in enumerate(nodes)
    ]


def torch(nodes, case, options, plan):
    """PyTorch on the first node, alone."""
    return ddp(nodes[:1], case, options, plan)


SYSTEMS = {f.__name__: f for f in (alone, convpar, mwms, ddp, torch)}


def measure(nodes, programs, timeout, progress):
    """Runs programs on nodes; returns what the first reports of its steps.

    All others are ended after it. `progress` is called with the last line of
    the first one's log, again and again.

    Raises:
        Failed: A program ended before the report, or time ran out.
    """
    with tempfile.TemporaryDirectory() as folder:
        logs = [pathlib.Path(folder) / f"node{i}" for i in range(len(nodes))]
        running = []
        try:
            for (node, command, env), log in zip(programs, logs, strict=False):
                running.append(node.start(command, log, **env))
            problem = _wait(running, logs[0], timeout, progress)
            row = _report(logs[0])
            if row is None:
                raise Failed(f"{problem}\n{_tails(logs)}")
            return row
        finally:
            for process, (node, _, _) in zip(running, programs, strict=False):
                node.end()
                process.wait()


def _wait(running, log, timeout, progress):
    """Waits until the first ends, any fails, or time is up; says why."""
    expected = f"Expected a report of steps within {timeout:.0f} s."
    stop = time.monotonic() + timeout
    while time.monotonic() < stop:
        codes = [process.poll() for process in running]
        for i, code in enumerate(codes):
            # Other programs may end without error before the report is read.
            if code or (i == 0 and code is not None):
                return f"{expected} Received: node {i} ended with code {code}."
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
