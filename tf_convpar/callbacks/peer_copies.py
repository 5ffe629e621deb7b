"""Copies of a model that stay with its workers, each shard on two of them.

They pass through the chief only when a worker is lost: each shard stays on its
device, and goes to the next worker as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar.callbacks._background import Background
from tf_convpar.machines import task_of
from tf_convpar.placement import ShardedTensor

# Job and number of a task.
_TaskId = tuple[str, int]


class Nearby(Background):
    """The last state of a model, each shard of which two devices hold.

    ```python
    nearby = Nearby(strategy.devices, strategy.chief_device)
    nearby.begin(snapshot.read(model))  # holds nothing up
    ...
    if nearby.arrived():
        nearby.values(absent=[("worker", 1)])  # without that worker
    ```

    Args:
        devices: Devices that hold shards.
        chief: Device of the chief, which holds all else and is never lost.
    """

    def __init__(self, devices: Sequence[str], chief: str) -> None:
        super().__init__()
        self._chief = chief
        # For each variable its shards, their copies elsewhere, its layout.
        self._held: list[tuple[list[Any], list[Any], Any]] | None = None
        self.forget(devices)

    def begin(self, values: list[Any]) -> None:
        """Begins to send values on, from where they were read."""
        self.start(self._copy, values)

    def values(self, absent: Collection[_TaskId]) -> list[tf.Tensor] | None:
        """The state, joined on the chief: one value for each variable.

        Args:
            absent: Tasks that are lost.

        Returns:
            None, if there is no state, or both places of a shard are absent.

        Raises:
            tf.errors.OpError: Another worker is lost meanwhile.
        """
        if self._held is None:
            return None
        joined = []
        for shards, copies, layout in self._held:
            pieces = []
            for places in zip(shards, copies, strict=True):
                present = [
                    p for p in places if task_of(p.backing_device) not in absent
                ]
                if not present:
                    return None
                pieces.append(present[0])
            with tf.device(self._chief):
                on_chief = [tf.identity(piece) for piece in pieces]
                if layout is None:
                    joined += on_chief
                    continue
                # It names devices that may have left.
                chief = dataclasses.replace(
                    layout, devices=(self._chief,) * len(on_chief), wire=None
                )
                joined.append(
                    tf.convert_to_tensor(ShardedTensor(on_chief, chief))
                )
        for value in joined:
            # A value that never came fails only when it is read.
            value.numpy()
        return joined

    def forget(self, devices: Sequence[str]) -> None:
        """Forgets the state.

        Args:
            devices: Devices that hold shards from now on.
        """
        self._held = None
        self._next = next_devices(devices, self._chief)
        self._send = tf.function(self._sent, autograph=False)

    def end(self) -> None:
        """Waits for what is under way, and forgets it."""
        super().end()
        self._held = None

    def _copy(self, values: list[Any]) -> None:
        copies, here = self._send(values)
        here.numpy()  # Fails if one of them has not come.
        held = []
        for value, others in zip(values, copies, strict=True):
            sharded = isinstance(value, ShardedTensor)
            shards = list(value.shards) if sharded else [value]
            held.append((shards, others, value.layout if sharded else None))
        self._held = held

    def _sent(self, values: list[Any]) -> tuple[list[list[tf.Tensor]], Any]:
        """Each shard on its next device, and a number once all have come."""
        copies = []
        for value in values:
            if isinstance(value, ShardedTensor):
                pairs = zip(value.shards, value.layout.devices, strict=True)
                copies.append([_on(self._next[d], s) for s, d in pairs])
            else:
                copies.append([_on(self._chief, value)])
        flat = [copy for row in copies for copy in row]
        with tf.device(self._chief), tf.control_dependencies(flat):
            return copies, tf.constant(len(flat))


def next_devices(devices: Sequence[str], chief: str) -> dict[str, str]:
    """For each device, the one that keeps copies of its shards.

    ```python
    next_devices(["chief", "a", "b"], "chief")  # a on b, b on a
    ```

    It is the first device of the next worker, or the chief's if there is no
    other worker. The chief's own shards stay there: it is never lost.
    """
    home = task_of(chief)
    tasks = list(dict.fromkeys(map(task_of, devices)))
    ring = [task for task in tasks if task != home]
    after = dict(zip(ring, [*ring[1:], *ring[:1]], strict=True))
    firsts = {task: d for d in reversed(devices) for task in [task_of(d)]}
    nexts = {}
    for device in devices:
        task = task_of(device)
        other = after.get(task, task)
        if task == home:
            nexts[device] = device
        else:
            nexts[device] = chief if other == task else firsts[other]
    return nexts


def _on(device: str, value: tf.Tensor) -> tf.Tensor:
    with tf.device(device):
        return tf.identity(value)
