"""`model.summary()` shows shards and devices.

Keras has no hook for another column. So its summary is printed, and then a
table of the parallel layers.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import rich.console
import rich.table

from tf_convpar._compat.keras import layers_of
from tf_convpar._compat.patches import replace
from tf_convpar.layers import ConvParallel
from tf_convpar.machines import short
from tf_convpar.placement import SampleLayout
from tf_convpar.sharding._unsplit_convolutions import unsplit_convolutions


def _with_shards(summary: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(summary)
    def wrapped(self: keras.Model, *args: Any, **kwargs: Any) -> None:
        rows = [
            (layer.name, _places(layer._samples or layer._layout))
            for layer in layers_of(self)
            if isinstance(layer, ConvParallel) and layer.is_spread
        ]
        summary(self, *args, **kwargs)
        if not rows:
            return
        show = kwargs.get("print_fn") or print
        show(_table(("Layer", "Kernels of each device, or samples"), rows))
        unsplit_rows = [
            (convolution.layer.name, convolution.reason)
            for convolution in unsplit_convolutions(self)
        ]
        if unsplit_rows:
            show(
                _table(
                    ("Layer", "Whole on the chief, because it"), unsplit_rows
                )
            )

    return wrapped


def _table(heads: Sequence[str], rows: Sequence[tuple[str, str]]) -> str:
    table = rich.table.Table(*heads)
    for row in rows:
        table.add_row(*row)
    text = io.StringIO()
    widest = max(len(a) + len(b) for a, b in (*rows, tuple(heads)))
    rich.console.Console(file=text, width=widest + 12).print(table)
    return text.getvalue()


def _places(layout: Any) -> str:
    """A layout in words.

    ```python
    _places(layout)  # "6 on CPU:0, 4 on worker 0 CPU:0"
    _places(samples)  # "3 of 4 samples on CPU:0, 1 of 4 samples on ..."
    ```
    """
    if isinstance(layout, SampleLayout):
        total = sum(layout.shares)
        parts = [f"{share} of {total} samples" for share in layout.shares]
    else:
        parts = [str(size) for size in layout.sizes]
    return ", ".join(
        f"{part} on {short(device)}"
        for part, device in zip(parts, layout.devices, strict=True)
    )


replace("keras:Model.summary", by=_with_shards)
