"""The card of a GPU: its model, compute capability and driver."""

from __future__ import annotations

import dataclasses
import re

from tf_convpar.machines._files import host_file
from tf_convpar.machines._files import host_files
from tf_convpar.machines._names import index_of
from tf_convpar.machines._names import task_of

# Folder in which NVIDIA's driver describes itself and the cards.
_DRIVER = "/proc/driver/nvidia"


@dataclasses.dataclass(frozen=True)
class Card:
    """The card of a GPU.

    Attributes:
        model: Model; "" if unknown. For a GPU of another task, all models on
            that machine: only the task itself knows which card is which device.
        capability: Compute capability, such as "9.0"; "" if unknown.
        driver: Version of the driver, such as "580.82.07"; "" if unknown.
        number: Number of the card among those of its task: two logical GPUs may
            be parts of one card.
    """

    model: str
    capability: str
    driver: str
    number: int


def card_of(device: str) -> Card:
    """The card of a GPU, or of a part of one, of any task.

    ```python
    card_of("/device:GPU:0")  # Card("NVIDIA H100 ...", "9.0", "580.82.07", 0)
    ```
    """
    version_text = host_file(device, f"{_DRIVER}/version")
    driver = re.search(
        r"^NVRM version:.*?\s(\d+\.\d[\d.]*)\s", version_text, re.M
    )
    version = driver[1] if driver else ""
    number = _number(device)
    if number is not None:
        import tensorflow as tf

        details = tf.config.experimental.get_device_details(
            tf.config.get_visible_devices("GPU")[number]
        )
        parts = details.get("compute_capability", ())
        model = str(details.get("device_name", ""))
        return Card(model, ".".join(map(str, parts)), version, number)
    models = {
        match[1].strip()
        for text in host_files(device, f"{_DRIVER}/gpus/*/information")
        if (match := re.search(r"^Model:\s*(.*)$", text, re.M))
    }
    return Card(", ".join(sorted(models)), "", version, index_of(device))


def _number(device: str) -> int | None:
    """The number of the card of a GPU of this process, None for others."""
    import tensorflow as tf

    here = tf.config.list_logical_devices("CPU")[0].name
    if task_of(device) != task_of(here):
        return None
    parts = [
        len(tf.config.get_logical_device_configuration(card) or [None])
        for card in tf.config.get_visible_devices("GPU")
    ]
    return card_number(index_of(device), parts)


def card_number(index: int, parts: list[int]) -> int | None:
    """Number of a logical GPU's card, by the logical GPUs of each card.

    ```python
    card_number(2, [2, 1])  # 1: the first card is GPU:0 and GPU:1
    ```
    """
    for number, count in enumerate(parts):
        if index < count:
            return number
        index -= count
    return None
