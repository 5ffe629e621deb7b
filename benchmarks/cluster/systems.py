"""The systems that are compared, and how each is started on the nodes."""

import json
import os
import pathlib
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
PORT = 2222
TAIL = 12


class Failed(Exception):
    """A system made no steps; the message has the ends of its logs."""


def alone(nodes, case, options):
    """Plain Keras on the first node."""
    return [(nodes[0], [sys.executable, HERE / "alone.py", *_steps(case)], {})]


def convpar(nodes, case, options):
    """This package: a chief on the first node, workers on the others."""
    chief, *workers = nodes
    cluster = {"chief": [_address(chief)]}
    if workers:
        cluster["worker"] = [_address(node) for node in workers]
    command = [sys.executable, HERE / "chief.py", *_steps(case)]
    command += ["--plan", _plan(options.plan, case)]
    if options.algorithm:
        command += ["--algorithm", options.algorithm]
    if options.wire_dtype:
        command += ["--wire-dtype", options.wire_dtype]
    found = [(chief, command, _tf_config(cluster, "chief", 0))]
    for i, node in enumerate(workers):
        command = [sys.executable, "-m", "tf_convpar", "worker", "--threads=1"]
        command += _listen(node)
        found.append((node, command, _tf_config(cluster, "worker", i)))
    return found


def mwms(nodes, case, options):
    """TensorFlow's MultiWorkerMirroredStrategy."""
    cluster = {"worker": [_address(node) for node in nodes]}
    command = [sys.executable, HERE / "peers" / "mwms.py", *_steps(case)]
    return [
        (node, command, _tf_config(cluster, "worker", i) | _modules())
        for i, node in enumerate(nodes)
    ]


def ddp(nodes, case, options):
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


def torch(nodes, case, options):
    """PyTorch on the first node, alone."""
    return ddp(nodes[:1], case, options)


SYSTEMS = {f.__name__: f for f in (alone, convpar, mwms, ddp, torch)}


def measure(system, nodes, case, options, progress):
    """What a system reports of its steps on these nodes.

    Its first program makes the report, and all others end with it. `progress`
    is called with the last line of that program's log, again and again.

    Raises:
        Failed: A program ended before that, or time ran out.
    """
    programs = SYSTEMS[system](nodes, case, options)
    with tempfile.TemporaryDirectory() as folder:
        logs = [pathlib.Path(folder) / f"node{i}" for i in range(len(nodes))]
        running = []
        try:
            for (node, command, env), log in zip(programs, logs, strict=False):
                running.append(node.start(command, log, **env))
            problem = _wait(running, logs[0], options.timeout, progress)
            row = _report(logs[0])
            if row is None:
                raise Failed(f"{system}: {problem}\n{_tails(logs)}")
            return row
        finally:
            for process, (node, _, _) in zip(running, programs, strict=False):
                node.end()
                process.wait()


def _wait(running, log, timeout, progress):
    """Until the first ends, or it makes no sense to wait; says why."""
    stop = time.monotonic() + timeout
    while time.monotonic() < stop:
        codes = [process.poll() for process in running]
        if codes[0] is not None:
            return f"the program of node 0 ended with exit code {codes[0]}"
        for i, code in enumerate(codes):
            if code:
                return f"the program of node {i} ended with exit code {code}"
        progress((_lines(log) or ["starting"])[-1])
        time.sleep(0.5)
    return f"no report within {timeout:.0f} s"


def _report(log):
    """The line of JSON, if there is one."""
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
    """As `chief.py` reads it; "shares": in proportion to the nodes' shares."""
    return json.dumps({".*": case.shares}) if plan == "shares" else plan


def _tf_config(cluster, job, index):
    task = {"type": job, "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def _address(node):
    return f"{node.address}:{PORT}"


def _listen(node):
    """A worker may have to be told that it is to be reached from outside."""
    from tf_convpar.cli.worker import command

    known = any(option.name == "listen" for option in command.params)
    return ["--listen", node.address] if known else []


def _modules():
    """Lets the peers import what all systems share."""
    known = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [known])])}
