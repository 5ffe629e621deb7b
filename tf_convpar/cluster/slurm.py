"""The tasks of a Slurm job step, read from the variables that srun sets.

A task is known by its node and its number on that node, whatever the order in
which srun has dealt ranks to nodes. GPUs are no part of it: TensorFlow sees
those that Slurm shows a task, none included. TensorFlow's own
`SlurmClusterResolver` counts them, and fails where there are none.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from collections.abc import Mapping

# "0" to take no notice of Slurm, or the first port of each node.
VARIABLE = "TF_CONVPAR_SLURM"
CURE = f"e.g. from 23456 on by `export {VARIABLE}=23456` before srun"

# Below those that Linux gives to whoever asks for any.
_PORTS = range(12288, 28672)
# Tasks of a job on one node for which neighbouring jobs leave room.
_ROOM = 16
# More nodes than any Slurm has.
_MOST = 100_000


@dataclasses.dataclass(frozen=True)
class Step:
    """The tasks of a step, and which of them this process is.

    Attributes:
        addresses: `host:port` of each, node by node.
        index: number of this process among them.
    """

    addresses: tuple[str, ...]
    index: int


def step(environ: Mapping[str, str]) -> Step | None:
    """Reads the step that srun has started this process in.

    ```python
    step(os.environ)  # Step(("node1:12304", "node2:12304"), index=0)
    ```

    Ports are those that `srun --resv-ports` reserved, or else depend on the
    numbers of the job and the step. `TF_CONVPAR_SLURM` goes first.

    Returns:
        The step; None outside of one, and for a step of a single task.

    Raises:
        ValueError: A variable is missing, or is not as Slurm writes it.
    """
    if not here(environ):
        return None
    nodes = list(hostnames(_required(environ, "SLURM_STEP_NODELIST")))
    counts = _tasks_per_node(_required(environ, "SLURM_STEP_TASKS_PER_NODE"))
    wanted = _number(environ, "SLURM_STEP_NUM_TASKS")
    if len(counts) != len(nodes) or sum(counts) != wanted:
        raise ValueError(
            "Expected Slurm to name a node for each count of tasks. Received "
            f"{len(nodes)} nodes ({environ['SLURM_STEP_NODELIST']}) and the "
            f"counts {environ['SLURM_STEP_TASKS_PER_NODE']} for {wanted} "
            f"tasks. Set TF_CONFIG for each task, or {VARIABLE}=0."
        )
    if wanted == 1:
        return None
    ports = _ports(environ, max(counts))
    place = (
        _number(environ, "SLURM_NODEID"),
        _number(environ, "SLURM_LOCALID"),
    )
    tasks = [(n, i) for n, count in enumerate(counts) for i in range(count)]
    if place not in tasks:
        raise ValueError(
            "Expected SLURM_NODEID and SLURM_LOCALID to be those of a task of "
            f"{environ['SLURM_STEP_TASKS_PER_NODE']}. Received: {place[0]} and "
            f"{place[1]}."
        )
    return Step(
        tuple(f"{nodes[node]}:{ports[i]}" for node, i in tasks),
        tasks.index(place),
    )


def here(environ: Mapping[str, str]) -> bool:
    """Whether srun has started this process, and Slurm is not to be ignored."""
    return "SLURM_STEP_NODELIST" in environ and environ.get(VARIABLE) != "0"


def hostnames(text: str) -> Iterator[str]:
    """The names in a list of nodes, as `scontrol show hostnames` prints them.

    ```python
    list(hostnames("node[1-3,7],gpu01"))
    # ["node1", "node2", "node3", "node7", "gpu01"]
    ```

    Raises:
        ValueError: It is no such list.
    """
    # A name, with numbers in brackets at its end or between its parts.
    part = r"(?:[^\[\],\s]|\[[^\[\]]*\])+"
    if not re.fullmatch(rf"{part}(,{part})*", text):
        raise _malformed("SLURM_STEP_NODELIST", "node[1-3,7]", text)
    for name in re.findall(part, text):
        pieces = re.findall(r"([^\[\]]+)|\[(.*?)\]", name)
        choices = [[a] if a else list(_numbers(b, text)) for a, b in pieces]
        yield from map("".join, itertools.product(*choices))


def _numbers(ranges: str, text: str) -> Iterator[str]:
    """`08-10,12` as 08, 09, 10, 12."""
    for each in ranges.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", each, re.ASCII)
        first, last = match.groups(default="") if match else ("1", "0")
        last = last or first
        if not 0 <= int(last) - int(first) < _MOST:
            raise _malformed("SLURM_STEP_NODELIST", "node[1-3,7]", text)
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{len(first)}}"


def _tasks_per_node(text: str) -> list[int]:
    """`2(x3),1` as 2, 2, 2, 1."""
    counts = list[int]()
    for each in text.split(","):
        match = re.fullmatch(r"(\d{1,5})(?:\(x(\d{1,5})\))?", each, re.ASCII)
        if not match:
            raise _malformed("SLURM_STEP_TASKS_PER_NODE", "2(x3),1", text)
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _ports(environ: Mapping[str, str], count: int) -> range | list[int]:
    """`count` ports, the same on each node; every task computes the same."""
    value = environ.get(VARIABLE, "")
    if value:
        if not re.fullmatch(r"\d+", value, re.ASCII) or not (
            1024 <= int(value) <= 65536 - count
        ):
            raise ValueError(
                f"Expected {VARIABLE} to be 0, or the first of {count} "
                f"port(s), from 1024 to {65536 - count}. Received: {value!r}."
            )
        return range(int(value), int(value) + count)
    reserved = environ.get("SLURM_STEP_RESV_PORTS", "")
    if re.fullmatch(r"[\d,-]+", reserved, re.ASCII):
        ports = list(map(int, _numbers(reserved, reserved)))
        if len(ports) >= count:
            return ports
    # Jobs that share a node have numbers near to each other.
    job = _number(environ, "SLURM_JOB_ID")
    number = _number(environ, "SLURM_STEP_ID")
    places = len(_PORTS) // _ROOM
    first = _PORTS[(job + 37 * number) % places * _ROOM]
    return range(first, first + count)


def _number(environ: Mapping[str, str], name: str) -> int:
    text = _required(environ, name)
    if not re.fullmatch(r"\d+", text, re.ASCII):
        raise _malformed(name, "3", text)
    return int(text)


def _required(environ: Mapping[str, str], name: str) -> str:
    if name not in environ:
        raise ValueError(
            f"Expected {name} of each task of a Slurm step. Received none, "
            "though SLURM_STEP_NODELIST is there: start the program by srun, "
            f"or set {VARIABLE}=0."
        )
    return environ[name]


def _malformed(name: str, right: str, text: str) -> ValueError:
    return ValueError(
        f"Expected {name} as Slurm writes it, such as {right}. Received: "
        f"{text!r}. Set TF_CONFIG for each task, or {VARIABLE}=0."
    )
