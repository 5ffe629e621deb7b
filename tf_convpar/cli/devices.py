"""`convpar devices`."""

import dataclasses
import os
from typing import TYPE_CHECKING
from typing import Any

import click

from tf_convpar import machines
from tf_convpar.cli._shared import as_json
from tf_convpar.cli._shared import messages_only
from tf_convpar.cli._shared import patient
from tf_convpar.cli._shared import print_json
from tf_convpar.cli._shared import without_chatter
from tf_convpar.units import GIB

if TYPE_CHECKING:
    from tf_convpar.cluster.spec import Cluster


@click.command(name="devices")
@patient
@as_json
def command(timeout_s: float, as_json: bool) -> None:
    """List this machine's devices, and the cluster's if TF_CONFIG is set.

    \b
      convpar devices --json

    The tasks of the cluster are asked over the network. A chief answers only
    while its program runs.
    """  # noqa: D301 (click keeps the lines after a backspace as they are)
    from tf_convpar.cluster import spec

    # Looking at a GPU must not take its memory from those who use it.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    with messages_only():
        cluster = spec.resolve()
    with without_chatter():
        described: dict[str, Any] = {"here": _here()}
    if cluster is not None:
        described["cluster"] = _asked(cluster, timeout_s)
    if as_json:
        print_json(described)
    else:
        _print_tables(described)


def _here() -> list[dict[str, Any]]:
    """Describes the physical devices of this machine."""
    import psutil
    import tensorflow as tf

    from tf_convpar._compat.tensorflow import list_local_devices

    limits = {
        device.name.rpartition("device:")[2]: device.memory_limit
        for device in list_local_devices()
    }
    devices = []
    for device in tf.config.list_physical_devices():
        name = device.name.rpartition("physical_device:")[2]
        if device.device_type == "CPU":
            # The limit that TensorFlow reports for a CPU is a constant.
            memory, model = psutil.virtual_memory().total, machines.processor()
        else:
            details = tf.config.experimental.get_device_details(device)
            memory, model = limits.get(name), details.get("device_name", "")
        devices.append(
            {
                "name": name,
                "type": device.device_type,
                "memory_bytes": memory,
                "description": model,
            }
        )
    return devices


def _asked(cluster: "Cluster", timeout_s: float) -> list[dict[str, Any]]:
    """Describes every task of the cluster by its own answer."""
    from tf_convpar.cluster import status

    tasks = []
    for task, answer in status.ask(cluster.tasks, timeout_s).items():
        problem, devices = (
            (answer, ()) if isinstance(answer, str) else (None, answer)
        )
        tasks.append(
            {
                "task": task.name,
                "address": task.address,
                "reached": problem is None,
                "problem": problem,
                "devices": [dataclasses.asdict(d) for d in devices],
            }
        )
    return tasks


def _print_tables(described: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    table = Table(title="This machine", title_justify="left")
    for column in ("Device", "Memory", "Description"):
        table.add_column(column)
    for device in described["here"]:
        table.add_row(
            device["name"],
            _gib(device["memory_bytes"]),
            escape(device["description"]),
        )
    console.print(table)
    if "cluster" not in described:
        return
    table = Table(title="The cluster", title_justify="left")
    for column in ("Task", "Address", "Device", "Memory"):
        # Addresses are folded: one that is cut short helps nobody.
        table.add_column(column, overflow="fold", no_wrap=column != "Address")
    table.add_column("Description")
    for task in described["cluster"]:
        where = (task["task"][len("/job:") :], escape(task["address"]))
        if not task["reached"]:
            problem = escape(task["problem"])
            table.add_row(*where, "[red]unreachable[/red]", "", problem)
        for device in task["devices"]:
            is_cpu = device["type"] == "CPU"
            table.add_row(
                *where,
                device["name"].rpartition("device:")[2],
                "" if is_cpu else _gib(device["memory_bytes"]),
                escape(device["description"]),
            )
    console.print(table)


def _gib(count: int | None) -> str:
    return "unknown" if count is None else f"{count / GIB:.1f} GiB"
