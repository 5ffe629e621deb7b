"""`model.summary()` shows shards and devices.

Keras has no hook for another column: its summary is printed, then a table of
the parallel layers.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any

import keras
import rich.console
import rich.table

from tf_convpar.layers import ConvParallel
from tf_convpar.placement import Layout


def _with_shards(summary: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(summary)
    def wrapped(self: keras.Model, *args: Any, **kwargs: Any) -> None:
        summary(self, *args, **kwargs)
        rows = [
            (layer.name, _places(layer._layout))
            for layer in self._flatten_layers(include_self=False)
            if isinstance(layer, ConvParallel) and layer._layout
        ]
        if not rows:
            return
        table = rich.table.Table("Layer", "Kernels of each device")
        for row in rows:
            table.add_row(*row)
        text = io.StringIO()
        console = rich.console.Console(
            file=text, width=max(len(p) + len(n) for n, p in rows) + 12
        )
        console.print(table)
        show = kwargs.get("print_fn") or print
        show(text.getvalue())

    return wrapped


def _places(layout: Layout) -> str:
    """`"6 on CPU:0, 4 on worker 0 CPU:0"`."""
    return ", ".join(
        f"{size} on {_short(device)}"
        for size, device in zip(layout.sizes, layout.devices, strict=True)
    )


def _short(device: str) -> str:
    words = dict(word.split(":", 1) for word in device.strip("/").split("/"))
    task = f"{words['job']} {words['task']} " if "job" in words else ""
    if words.get("job") == "localhost":
        task = ""
    return f"{task}{words['device']}"


keras.Model.summary = _with_shards(keras.Model.summary)
