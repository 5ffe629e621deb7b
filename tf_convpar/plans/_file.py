"""Reads plans from JSON files, which people may have edited."""

from __future__ import annotations

import os

from tf_convpar.plans._form import FORM
from tf_convpar.plans._form import digest
from tf_convpar.plans._prediction import Prediction
from tf_convpar.plans._type import Plan


def load(path: str | os.PathLike[str]) -> Plan:
    """Reads a plan from a JSON file, whose counts may have been edited.

    ```python
    load("plan.json")  # with the prediction that was saved, if it still holds
    ```

    Args:
        path: A file that `Plan.save` wrote. In each layer, `shards` may have
            been changed by hand.

    Returns:
        The plan. It has no prediction if counts or splits were changed.

    Raises:
        ValueError: The counts of a layer do not sum to its filters or samples,
            they do not fit a device's memory, or the file is not a plan. The
            message says which.
        OSError: The file cannot be read.
    """
    content = FORM.load(path)
    allocation = {layer.name: layer.shards for layer in content.layers}
    splits = {layer.name: layer.split for layer in content.layers}
    reason = "Changed by hand; only a calibration can say what it takes."
    prediction = None
    saved = content.prediction
    if saved is not None and saved.of == digest(allocation, splits):
        reason = content.reason
        prediction = Prediction(saved.step_s, saved.spans, saved.sent_bytes)
    return Plan(
        allocation=allocation,
        devices=tuple(device.name for device in content.devices),
        prediction=prediction,
        single_s={
            device.name: device.single_s
            for device in content.devices
            if device.single_s is not None
        },
        equal_s=content.equal_s,
        reason=reason,
        fingerprint=content.fingerprint,
        memory_bytes=tuple(device.memory_bytes for device in content.devices),
        layer_bytes={
            layer.name: (layer.bytes, layer.bytes_per_shard)
            for layer in content.layers
        },
        splits=splits,
    )
