"""The names of the devices that a strategy computes on."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import tensorflow as tf


def canonical(device: str | tf.config.LogicalDevice) -> str:
    """The full TensorFlow name of a device, which may be given in short.

    ```python
    canonical("gpu:0")
    # "/job:localhost/replica:0/task:0/device:GPU:0"
    ```
    """
    device = getattr(device, "name", device)
    spec = None
    if isinstance(device, str):
        name = device if device.startswith("/") else f"/device:{device.upper()}"
        with contextlib.suppress(ValueError):
            spec = tf.DeviceSpec.from_string(name)
    if spec is None or spec.device_type is None:
        raise ValueError(
            "Expected a device name such as 'CPU:0', 'GPU:1' or "
            f"'/job:worker/task:0/device:CPU:0'. Received: {device!r}."
        )
    here = tf.DeviceSpec.from_string(here_prefix())
    return (
        here.make_merged_spec(spec)
        .replace(device_index=spec.device_index or 0, replica=0)
        .to_string()
    )


def here_prefix() -> str:
    """The job and task of this process: `"/job:chief/replica:0/task:0"`."""
    cpu = tf.config.list_logical_devices("CPU")[0].name
    return cpu.rsplit("/", 1)[0] or "/job:localhost/replica:0/task:0"


def available() -> list[str]:
    """Names of all CPUs and GPUs, those of this process first."""
    here = here_prefix()
    names = [
        device.name if "/job:" in device.name else here + device.name
        for device in tf.config.list_logical_devices()
        if device.device_type in ("CPU", "GPU")
    ]
    return sorted(names, key=lambda name: not name.startswith(f"{here}/"))


def default_devices() -> list[str]:
    """The devices that a strategy uses if it is given none.

    In a cluster these are the GPUs of each task, or its first CPU if it has no
    GPU. On a machine alone they are its GPUs, then its CPUs.
    """
    names = available()
    here = f"{here_prefix()}/"
    by_task: dict[str, list[str]] = {}
    for name in names:
        by_task.setdefault(name.rsplit("/", 1)[0], []).append(name)
    if len(by_task) == 1:
        return sorted(names, key=lambda name: "GPU" not in name)
    chosen = []
    for task_names in by_task.values():
        gpus = [name for name in task_names if ":GPU:" in name]
        chosen.extend(gpus or task_names[:1])
    return sorted(chosen, key=lambda name: not name.startswith(here))


def check(devices: Sequence[str]) -> list[str]:
    """The full names of `devices`, each of which this program must know."""
    if isinstance(devices, str) or not devices:
        raise ValueError(
            "Expected `devices` to be a list of at least one device name. "
            f"Received: devices={devices!r}."
        )
    known = available()
    names = [canonical(device) for device in devices]
    for text, name in zip(devices, names, strict=True):
        if name not in known:
            raise ValueError(
                f"Expected each of `devices` to be one of {known}. Received: "
                f"{text!r} ({name}). Logical CPUs are made with "
                "tf.config.set_logical_device_configuration; other machines "
                "are reached through TF_CONFIG."
            )
    if len(set(names)) < len(names):
        raise ValueError(
            f"Expected each device once. Received: devices={list(devices)}."
        )
    return names
