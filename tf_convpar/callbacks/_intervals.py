"""Times as people write them: `"30s"`."""

from __future__ import annotations

from typing import Any

_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def seconds(name: str, given: float | str) -> float:
    """Seconds of a time: a number of them, or text such as `"5min"`.

    Args:
        name: Of the argument.
        given: What was given for it.

    Raises:
        ValueError: It is no time.
    """
    found: Any = given
    if isinstance(given, str):
        number = given.rstrip("smhin ")
        unit = given[len(number) :].strip() or "s"
        try:
            found = float(number) * _UNITS[unit]
        except (ValueError, KeyError):
            found = None
    if not isinstance(found, int | float) or not found > 0:
        raise ValueError(
            f"Expected `{name}` to be seconds, or text such as '30s' or "
            f"'5min'. Received: {name}={given!r}."
        )
    return float(found)
