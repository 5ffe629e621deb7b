"""The measured times of a model's layers, for people to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from tf_convpar.planner import _work_keys
from tf_convpar.planner._calibration import Calibration
from tf_convpar.planner._calibration import Work
from tf_convpar.sharding import calls_of


class Kind(NamedTuple):
    """Layers that do the same work, which is measured once.

    Attributes:
        name: Name of the first of these layers.
        layer: Name of that layer's class.
        calls: Number of calls in the model that do this work.
        works: Times of this work, one `Work` for each device.
    """

    name: str
    layer: str
    calls: int
    works: Sequence[Work]


def kinds(model: Any, calibration: Calibration) -> list[Kind]:
    """The kinds of layers in a model, in the order in which they first run.

    ```python
    kinds(model, calibration)[0].works[0].at("forward", 16)  # seconds
    ```

    Args:
        model: Model that was measured.
        calibration: Measurements of that model.
    """
    graph = calls_of(model)
    alike: dict[str, list[Any]] = {}
    for call in graph.calls:
        if call.layer is not None:
            alike.setdefault(_work_keys.key(graph, call), []).append(call)
    return [
        Kind(
            calls[0].name,
            type(calls[0].layer).__name__,
            len(calls),
            [device.works[key] for device in calibration.devices],
        )
        for key, calls in alike.items()
    ]
