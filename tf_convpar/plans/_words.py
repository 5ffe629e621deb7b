"""Times as people read them."""

from __future__ import annotations


def seconds_text(seconds: float) -> str:
    """Seconds as people read them: `"1.23 s"`, `"45.6 ms"`."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.3g} ms"
