"""A timeline as the two files that people look at."""

from __future__ import annotations

import os
import pathlib

from tf_convpar.timeline._chrome import to_chrome
from tf_convpar.timeline._course import Course
from tf_convpar.timeline._draw import draw
from tf_convpar.timeline._spans import Recording


def write(
    recording: Recording,
    path: str | os.PathLike[str],
    *,
    steps: int = 3,
    course: Course | None = None,
) -> None:
    """Writes a picture, and all spans for ui.perfetto.dev.

    ```python
    write(record(cluster.tasks, 1.0), "timeline")  # timeline.png, .json
    ```

    Args:
        recording: What any tasks did.
        path: Files to write, without an ending; the folder is made if missing.
        steps: Number of training steps in the picture, the last ones.
        course: Course of the `fit` meanwhile, by the chief's clock.

    Raises:
        ValueError: There are no spans.
        OSError: A file cannot be written.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if course is not None:
        course = course.later(-recording.began_s)
    draw(recording.spans, f"{path}.png", steps=steps, course=course)
    to_chrome(recording.spans, f"{path}.json", course)
