"""Reads files of /proc and /sys through the device's own process."""

from __future__ import annotations

import re
from collections.abc import Sequence

import tensorflow as tf


def processor(device: str) -> str:
    """The model of the processor beside a device, "" if unknown."""
    found = re.search(
        r"^model name\s*:\s*(.*)$", _read(device, "cpuinfo"), re.M
    )
    return found[1] if found else ""


def memory_bytes(device: str) -> int | None:
    """What is free in its machine's memory; None if unknown, or of a GPU."""
    if tf.DeviceSpec.from_string(device).device_type != "CPU":
        return None
    found = re.search(
        r"^MemAvailable:\s*(\d+) kB", _read(device, "meminfo"), re.M
    )
    return int(found[1]) * 1024 if found else None


def instructions(device: str) -> str:
    """The widest vectors that the processor beside a device computes with."""
    flags = re.search(r"^flags\s*:\s*(.*)$", _read(device, "cpuinfo"), re.M)
    has = flags[1].split() if flags else []
    for name, flag in (("avx512", "avx512f"), ("avx2", "avx2")):
        if flag in has:
            return name
    return "base"


def _read(device: str, name: str) -> str:
    return _file(device, f"/proc/{name}")


def _file(device: str, path: str) -> str:
    spec = tf.DeviceSpec.from_string(device)
    host = spec.replace(device_type="CPU", device_index=0).to_string()
    try:
        # Asked for while a graph is traced, too.
        with tf.init_scope(), tf.device(host):
            content = tf.io.read_file(path).numpy()
    except tf.errors.OpError:
        return ""
    return str(content.decode(errors="replace"))


def identity(device: str) -> tuple[str, ...]:
    """What the speed of a device depends on, wherever it is.

    Its processor, the cores that its process may use, its quota of them, and
    how its process was started: the number of threads is an argument.

    ```python
    identity("/job:worker/replica:0/task:0/device:CPU:0")
    # ("AMD EPYC 7B13", "avx2", "0-3", "50000 100000", "2")
    ```

    A machine that says nothing goes by its device's name.
    """
    return (
        processor(device) or device,
        instructions(device),
        *_cores(device),
        _threads(device),
    )


def sharing_cores(devices: Sequence[str]) -> list[list[str]]:
    """Devices in groups, of which no two share a core.

    ```python
    sharing_cores(["/device:CPU:0", "/device:CPU:1"])  # one group
    ```
    """
    groups: list[tuple[str, set[int], list[str]]] = []
    for name in devices:
        machine = _read(name, "sys/kernel/random/boot_id").strip()
        cores = _numbers(_status(name, "Cpus_allowed_list"))
        if _is_gpu(name):
            cores = set()
        own = [name]
        for group in [g for g in groups if g[0] == machine and g[1] & cores]:
            groups.remove(group)
            cores |= group[1]
            own = group[2] + own
        groups.append((machine, cores, own))
    return [names for _, _, names in groups]


def _cores(device: str) -> tuple[str, str]:
    """Which the process may use, and how much of their time."""
    quota = ""
    for line in _read(device, "self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        for kind, file in (("", "cpu.max"), ("cpu", "cpu.cfs_quota_us")):
            # The first is of version 2 of control groups.
            if kind in controllers.split(","):
                path = f"/sys/fs/cgroup/{kind}/{group}/{file}"
                quota = quota or _file(device, path).strip()
    return _status(device, "Cpus_allowed_list"), quota


def _threads(device: str) -> str:
    given = _read(device, "self/cmdline").replace("\0", " ")
    found = re.search(r"--threads[= ](\d+)", given)
    return found[1] if found else ""


def _status(device: str, field: str) -> str:
    found = re.search(rf"^{field}:\s*(.*)$", _read(device, "self/status"), re.M)
    return found[1] if found else ""


def _numbers(ranges: str) -> set[int]:
    """`"0-2,5"` is 0, 1, 2 and 5."""
    found: set[int] = set()
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _is_gpu(device: str) -> bool:
    return bool(tf.DeviceSpec.from_string(device).device_type == "GPU")
