"""The processor that an algorithm is chosen for: this one or a worker's."""

from __future__ import annotations

import platform

import tensorflow as tf

from tf_convpar import machines
from tf_convpar.algorithms import _workspace
from tf_convpar.algorithms._bilinear import instruction_set
from tf_convpar.algorithms._bilinear import instruction_set_of


def cpu(device: str | None) -> str | None:
    """The full name of the CPU that computes; None where a GPU computes.

    Without a `device` it is this process' CPU, unless the process has a GPU.
    """
    local_cpu = tf.config.list_logical_devices("CPU")[0].name
    if device is None:
        return None if tf.config.list_logical_devices("GPU") else str(local_cpu)
    name = device if device.startswith("/") else f"/device:{device.upper()}"
    spec = tf.DeviceSpec.from_string(local_cpu).make_merged_spec(
        tf.DeviceSpec.from_string(name)
    )
    return spec.to_string() if spec.device_type == "CPU" else None


def threads(device: str) -> int:
    """Number of threads that one operation has on a CPU."""
    if _is_here(device):
        return _workspace.threads()
    return machines.threads(device)


def processor_of(device: str) -> _workspace.Processor:
    """The processor of a device: its threads and its vectors."""
    here = _is_here(device)
    vectors = instruction_set() if here else instruction_set_of(device)
    return _workspace.Processor(threads(device), vectors)


def facts(device: str) -> tuple[str, str, str]:
    """Facts by which times of a CPU are kept: its model, threads and vectors.

    The device's name is not among them: in another cluster it is the name of
    another machine.
    """
    fallback = device
    if _is_here(device):
        fallback = platform.processor() or platform.machine()
    model = machines.processor(device) or fallback
    count, vectors = processor_of(device)
    return model, f"{count} threads", vectors or "twin"


def _is_here(device: str) -> bool:
    """Whether a device belongs to this process."""
    here = tf.config.list_logical_devices("CPU")[0].name
    return machines.task_of(device) == machines.task_of(here)
