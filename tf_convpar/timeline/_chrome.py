"""Timelines as Chrome's trace events, which Perfetto opens."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any

from tf_convpar.timeline._rows import rows_of
from tf_convpar.timeline._spans import Span


def to_chrome(spans: Iterable[Span], path: str | os.PathLike[str]) -> None:
    """Writes spans to a JSON file for https://ui.perfetto.dev.

    ```python
    to_chrome(record(cluster.tasks, 1.0), "timeline.json")
    ```

    Each device of each task is shown as a process. Its operations that overlap
    are shown on different threads.

    Args:
        spans: Spans of any tasks.
        path: The file to write.
    """
    events: list[dict[str, Any]] = []
    for pid, row in enumerate(rows_of(spans)):
        events.append(
            {
                "ph": "M",
                "name": "process_name",
                "pid": pid,
                "args": {"name": row.label},
            }
        )
        for lane, members in enumerate(row.lanes):
            events.extend(
                {
                    "ph": "X",
                    "name": span.name.rpartition(":")[2],
                    "cat": span.kind,
                    "pid": pid,
                    "tid": lane,
                    "ts": span.start_s * 1e6,
                    "dur": (span.end_s - span.start_s) * 1e6,
                    "args": {"operation": span.name},
                }
                for span in members
            )
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
    pathlib.Path(path).write_text(text, encoding="utf-8")
