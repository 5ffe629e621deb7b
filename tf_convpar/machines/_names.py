"""Parses and shortens the names of devices and tasks.

TensorFlow's own parser is not used: commands that only read a file would wait
seconds for its import.
"""

from __future__ import annotations

import re

_TASK = re.compile(r"/job:(?P<job>\w+)(?:/replica:\d+)?/task:(?P<task>\d+)")
_DEVICE = re.compile(rf"(?:{_TASK.pattern})?/device:(?P<device>\w+:\d+)")
# The job of a program without a cluster.
ALONE = "localhost"


def short(text: str) -> str:
    """Shortens each full name of a device in a text.

    ```python
    short("/job:worker/replica:0/task:1/device:CPU:0")  # "worker 1 CPU:0"
    short("/device:CPU:0")  # "CPU:0"
    ```
    """
    return _DEVICE.sub(_in_words, text)


def task_of(name: str) -> tuple[str, int]:
    """Job and number of the task in the name of a device or of a task.

    ```python
    task_of("/job:worker/replica:0/task:1/device:CPU:0")  # ("worker", 1)
    task_of("/device:CPU:0")  # ("localhost", 0)
    ```
    """
    match = _TASK.search(name)
    return (match["job"], int(match["task"])) if match else (ALONE, 0)


def kind_of(name: str) -> str:
    """The type of a device, in capitals.

    ```python
    kind_of("/job:worker/replica:0/task:1/device:GPU:0")  # "GPU"
    ```
    """
    return name.rpartition("device:")[2].partition(":")[0].upper()


def host_of(name: str) -> str:
    """The CPU beside a device, which reads and writes files there.

    ```python
    host_of("/job:worker/replica:0/task:1/device:GPU:2")
    # "/job:worker/replica:0/task:1/device:CPU:0"
    ```
    """
    return f"{name.rpartition('/device:')[0]}/device:CPU:0"


def cpu_of(name: str) -> str:
    """The device itself where that is a CPU, else the CPU beside it.

    ```python
    cpu_of("/device:CPU:3")  # "/device:CPU:3"
    cpu_of("/device:GPU:3")  # "/device:CPU:0"
    ```
    """
    return name if kind_of(name) == "CPU" else host_of(name)


def index_of(name: str) -> int:
    """The number of a device among those of its type on its task.

    ```python
    index_of("/job:worker/replica:0/task:1/device:GPU:0")  # 0
    ```
    """
    return int(name.rpartition(":")[2])


def _in_words(match: re.Match[str]) -> str:
    if match["job"] in (None, ALONE):
        return match["device"]
    return f"{match['job']} {match['task']} {match['device']}"
