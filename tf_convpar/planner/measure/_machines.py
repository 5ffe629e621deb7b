"""What a device's machine says of itself, wherever it is."""

from __future__ import annotations

import re

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


def _read(device: str, name: str) -> str:
    """A file of /proc, read by the device's own process."""
    spec = tf.DeviceSpec.from_string(device)
    host = spec.replace(device_type="CPU", device_index=0).to_string()
    try:
        with tf.device(host):
            content = tf.io.read_file(f"/proc/{name}").numpy()
    except tf.errors.OpError:
        return ""
    return str(content.decode(errors="replace"))
