"""Reads files of /proc and /sys through the device's own process."""

from __future__ import annotations

import contextlib
import pathlib
import platform
import re
from collections.abc import Sequence

from tf_convpar.machines._names import kind_of

_TICKS = 100


def processor(device: str | None = None) -> str:
    """The model of the processor beside a device, "" if unknown.

    ```python
    processor()  # "AMD EPYC 7B13", of this machine
    ```
    """
    found = re.search(
        r"^model name\s*:\s*(.*)$", _read(device, "cpuinfo"), re.M
    )
    if found:
        return found[1]
    return "" if device else platform.processor() or platform.machine()


def memory_bytes(device: str) -> int | None:
    """Free bytes of the memory beside a CPU; None if unknown, or for a GPU."""
    if kind_of(device) != "CPU":
        return None
    found = re.search(
        r"^MemAvailable:\s*(\d+) kB", _read(device, "meminfo"), re.M
    )
    return int(found[1]) * 1024 if found else None


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
    found = re.findall(
        r"^\s*(\S+):\s*(\d+)(?:\s+\d+){7}\s+(\d+)",
        _read(device, "self/net/dev"),
        re.M,
    )
    rows = [row for row in found if (row[0] == "lo") == loopback]
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
    return _file(device, f"/proc/{name}")


def _file(device: str | None, path: str) -> str:
    if device is None:
        with contextlib.suppress(OSError):
            return pathlib.Path(path).read_text(errors="replace")
        return ""
    # Files of this machine do not need it.
    import tensorflow as tf

    spec = tf.DeviceSpec.from_string(device)
    host = spec.replace(device_type="CPU", device_index=0).to_string()
    try:
        # This may be called while a graph is traced.
        with tf.init_scope(), tf.device(host):
            content = tf.io.read_file(path).numpy()
    except tf.errors.OpError:
        return ""
    return str(content.decode(errors="replace"))


def identity(device: str) -> tuple[str, ...]:
    """What the speed of a device depends on, wherever it is.

    ```python
    identity("/job:worker/replica:0/task:0/device:CPU:0")
    # ("AMD EPYC 7B13", "avx2", "0-3", "50000 100000", "2")
    ```

    These are its processor, its widest vectors, the cores that its process may
    use, the quota of their time, and the number of threads that its process was
    started with. The device's name stands for an unknown processor.
    """
    return (
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
    """Groups of devices; no device shares a core with one of another group.

    ```python
    sharing_cores(["/device:CPU:0", "/device:CPU:1"])  # one group
    ```
    """
    groups: list[tuple[str, set[int], list[str]]] = []
    for name in devices:
        machine = _read(name, "sys/kernel/random/boot_id").strip()
        cores = _numbers(_status(name, "Cpus_allowed_list"))
        if kind_of(name) == "GPU":
            cores = set()
        own = [name]
        for group in [g for g in groups if g[0] == machine and g[1] & cores]:
            groups.remove(group)
            cores |= group[1]
            own = group[2] + own
        groups.append((machine, cores, own))
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
    """The numbers in a list of ranges: `"0-2,5"` is 0, 1, 2 and 5."""
    found: set[int] = set()
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
