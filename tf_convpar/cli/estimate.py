"""`convpar estimate`."""

from __future__ import annotations

import click

from tf_convpar.cli import _estimate_devices
from tf_convpar.cli import _estimate_step


@click.group(name="estimate")
def command() -> None:
    """Estimate memory, mini-batch and numbers of devices.

    \b
      convpar estimate memory ResNet50 --image 64 --batch 8

    They are those of a training step, before it is run. MODEL is a .keras file,
    or a model of keras.applications by name, such as ResNet50.
    """  # noqa: D301 (click keeps the lines after a backspace as they are)


for _one in (
    _estimate_step.memory,
    _estimate_step.batch,
    _estimate_devices.devices,
    _estimate_devices.servers,
):
    command.add_command(_one)
