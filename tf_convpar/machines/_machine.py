"""Facts about the machine of a device, read from its /proc and /sys."""

from __future__ import annotations

import pathlib
import platform
import re
from collections.abc import Sequence
from typing import Any

from tf_convpar.machines._card import card_of
from tf_convpar.machines._files import host_file
from tf_convpar.machines._names import kind_of
from tf_convpar.machines._names import task_of

_TICKS = 100


def processor(device: str | None = None) -> str:
    """The model of the processor beside a device, "" if unknown.

    ```python
    processor()  # "AMD EPYC 7B13", of this machine
    ```
    """
    match = re.search(
        r"^model name\s*:\s*(.*)$", _read(device, "cpuinfo"), re.M
    )
    if match:
        return match[1]
    return "" if device else platform.processor() or platform.machine()


def model(device: str) -> str:
    """The model of a GPU's card, or of the processor of a CPU."""
    card_model = card_of(device).model if kind_of(device) == "GPU" else ""
    return card_model or processor(device)


def memory_bytes(device: str) -> int | None:
    """Bytes that a device can give to a program; None if unknown.

    For a CPU these are the free bytes of the machine's memory, or those that
    its control group (a container, a job of Slurm) may still use, if these are
    fewer. For a GPU they are those that its process may allocate on the card.
    """
    if kind_of(device) != "CPU":
        from tf_convpar._compat.tensorflow import memory_limits

        return memory_limits().get(device)
    match = re.search(
        r"^MemAvailable:\s*(\d+) kB", _read(device, "meminfo"), re.M
    )
    free = [int(match[1]) * 1024] if match else []
    return min([*free, *_left_by_groups(device)], default=None)


def processor_s(device: str) -> float | None:
    """Seconds of processors that a device's process has used; None if unknown.

    ```python
    processor_s("/job:worker/replica:0/task:0/device:CPU:0")  # 12.34
    ```
    """
    # The name of the program, in parentheses, may have spaces.
    rest = _read(device, "self/stat").rpartition(")")[2].split()
    if len(rest) < 13:
        return None
    # Times of the user and of the system, in ticks: 100 a second on Linux.
    return (int(rest[11]) + int(rest[12])) / _TICKS


def network_bytes(device: str, loopback: bool) -> tuple[int, int] | None:
    """Bytes that the machine beside a device has received, and sent.

    They are those of all its programs.

    Args:
        device: Name of the device.
        loopback: Whether to count what the machine sends to itself, or else
            what it sends to others.
    """
    interfaces = re.findall(
        r"^\s*(\S+):\s*(\d+)(?:\s+\d+){7}\s+(\d+)",
        _read(device, "self/net/dev"),
        re.M,
    )
    rows = [row for row in interfaces if (row[0] == "lo") == loopback]
    if not rows:
        return None
    return sum(int(r) for _, r, _ in rows), sum(int(s) for *_, s in rows)


def instructions(device: str) -> str:
    """The widest vectors of a device's processor: avx512, avx2 or base."""
    flags = re.search(r"^flags\s*:\s*(.*)$", _read(device, "cpuinfo"), re.M)
    has = flags[1].split() if flags else []
    for name, flag in (("avx512", "avx512f"), ("avx2", "avx2")):
        if flag in has:
            return name
    return "base"


def _read(device: str | None, name: str) -> str:
    return host_file(device, f"/proc/{name}")


def environment(device: str) -> dict[str, str]:
    """The environment in which a device's process was started."""
    pairs = _read(device, "self/environ").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def maps(device: str) -> str:
    """The memory map of a device's process, as /proc has it."""
    return _read(device, "self/maps")


def cores(device: str) -> int:
    """The number of cores of a device's machine, 0 if unknown."""
    return len(re.findall(r"^processor\s*:", _read(device, "cpuinfo"), re.M))


def identity(device: str) -> tuple[str, ...]:
    """All on which the speed of a device depends.

    ```python
    identity("/job:worker/replica:0/task:0/device:CPU:0")
    # ("AMD EPYC 7B13", "avx2", "0-3", "50000 100000", "2")
    ```

    These are its processor, its widest vectors, the cores that its process may
    use, the quota of their time, and the number of threads that its process was
    started with. The device's name stands for an unknown processor. A GPU has
    its card before them: model, compute capability and driver.
    """
    card = card_of(device) if kind_of(device) == "GPU" else None
    return (
        *((card.model, card.capability, card.driver) if card else ()),
        processor(device) or device,
        instructions(device),
        *_cores(device),
        _threads(device),
    )


def threads(device: str) -> int:
    """Number of threads that compute on a device.

    ```python
    threads("/job:worker/replica:0/task:0/device:CPU:0")  # 4
    ```

    It is the number that the device's process was started with, or else that
    of the cores that the process may use.
    """
    cores = _numbers(_status(device, "Cpus_allowed_list"))
    return int(_threads(device) or len(cores) or 1)


def sharing_cores(devices: Sequence[str]) -> list[list[str]]:
    """Groups of devices that share no core and no card with other groups.

    ```python
    sharing_cores(["/device:CPU:0", "/device:CPU:1"])  # one group
    ```
    """
    groups: list[tuple[str, set[Any], list[str]]] = []
    for name in devices:
        machine = _read(name, "sys/kernel/random/boot_id").strip()
        cores: set[Any] = _numbers(_status(name, "Cpus_allowed_list"))
        if kind_of(name) == "GPU":
            cores = {("card", task_of(name), card_of(name).number)}
        group_names = [name]
        for group in [g for g in groups if g[0] == machine and g[1] & cores]:
            groups.remove(group)
            cores |= group[1]
            group_names = group[2] + group_names
        groups.append((machine, cores, group_names))
    return [names for _, _, names in groups]


def _cores(device: str) -> tuple[str, str]:
    """The cores that a device's process may use, and its quota of their time.

    Both are as the system writes them.
    """
    quota = ""
    for line in _read(device, "self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        for kind, file in (("", "cpu.max"), ("cpu", "cpu.cfs_quota_us")):
            # The first file is that of version 2 of control groups.
            if kind in controllers.split(","):
                path = f"/sys/fs/cgroup/{kind}/{group}/{file}"
                quota = quota or host_file(device, path).strip()
    return _status(device, "Cpus_allowed_list"), quota


# Of control groups of versions 2 and 1: the controller, and the files with the
# limit, with what is used, and the field of memory.stat with files' pages that
# are given up when memory runs short.
_MEMORY_FILES = (
    ("", "memory.max", "memory.current", "inactive_file"),
    (
        *("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
        "total_inactive_file",
    ),
)


def _left_by_groups(device: str) -> list[int]:
    """Bytes that each control group of a device's process leaves to it."""
    left = []
    for line in _read(device, "self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        for kind, limit, used, cached in _MEMORY_FILES:
            if kind not in controllers.split(","):
                continue
            root = f"/sys/fs/cgroup/{kind}"
            # Within a container the group's own folder may be the root.
            for folder in (group, *pathlib.PurePosixPath(group).parents):
                most, now, stat = (
                    host_file(device, f"{root}/{folder}/{name}").strip()
                    for name in (limit, used, "memory.stat")
                )
                if not (most.isdigit() and now.isdigit()):
                    continue
                pages = re.search(rf"^{cached} (\d+)$", stat, re.M)
                spare = int(pages[1]) if pages else 0
                left.append(max(0, int(most) - int(now) + spare))
    return left


def _threads(device: str) -> str:
    command_line = _read(device, "self/cmdline").replace("\0", " ")
    match = re.search(r"--threads[= ](\d+)", command_line)
    if match:
        return match[1]
    text = environment(device).get("TF_NUM_INTRAOP_THREADS", "")
    # 0 leaves the number to TensorFlow.
    return text if text.isdecimal() and int(text) else ""


def _status(device: str, field: str) -> str:
    match = re.search(rf"^{field}:\s*(.*)$", _read(device, "self/status"), re.M)
    return match[1] if match else ""


def _numbers(ranges: str) -> set[int]:
    """The numbers in a list of ranges: `"0-2,5"` is 0, 1, 2 and 5."""
    numbers: set[int] = set()
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers
