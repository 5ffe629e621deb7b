"""A timeline as the two files that people look at."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence

from tf_convpar.timeline._chrome import to_chrome
from tf_convpar.timeline._draw import draw
from tf_convpar.timeline._spans import Span


def write(
    spans: Sequence[Span], path: str | os.PathLike[str], *, steps: int = 3
) -> None:
    """Writes a picture, and all spans for ui.perfetto.dev.

    ```python
    write(record(cluster.tasks, 1.0), "timeline")  # timeline.png, .json
    ```

    Args:
        spans: Spans of any tasks.
        path: Where to, without an ending; its folder is made if it is missing.
        steps: Number of training steps in the picture, the last ones.

    Raises:
        ValueError: There are no spans.
        OSError: A file cannot be written.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(spans, f"{path}.png", steps=steps)
    to_chrome(spans, f"{path}.json")
