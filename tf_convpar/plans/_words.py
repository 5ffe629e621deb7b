"""Names and times as people read them."""

from __future__ import annotations

import re

_FULL_NAME = re.compile(r"/job:(\w+)/replica:\d+/task:(\d+)/device:(\w+:\d+)")


def short(name: str) -> str:
    """A device, or a link's two, in a few words: `"worker 0 CPU:0"`."""
    return _FULL_NAME.sub(r"\1 \2 \3", name)


def seconds_text(seconds: float) -> str:
    """Seconds as people read them: `"1.23 s"`, `"45.6 ms"`."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.3g} ms"
