"""Rates, sizes and times, as people write them."""

from __future__ import annotations

import math
import re
from typing import Any

MIB, GIB = 2**20, 2**30

_NUMBER = r"(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)"
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_INTERVALS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_SIZES = {
    **{f"{prefix}B": 1000**i for i, prefix in enumerate(("", *"kMGT"))},
    **{f"{prefix}iB": 1024**i for i, prefix in enumerate("KMGT", 1)},
    # As many write it, and a plain number.
    **{"KB": 1000, "": 1},
}


def flops(text: str) -> float:
    """Floating-point operations per second: `"100GFLOPS"`, `"10TFLOPS"`.

    Raises:
        ValueError: `text` is no such rate, or not above 0.
    """
    match = re.fullmatch(
        _NUMBER + r"\s*(?P<prefix>[MGT])(?:FLOPS|FLOP/s|flops|flop/s)", text
    )
    value = match and float(match["number"]) * _PREFIXES[match["prefix"]]
    if not value:
        raise ValueError(
            "Expected a rate above 0 in MFLOPS, GFLOPS or TFLOPS, such as "
            f"100GFLOPS. Received: {text!r}."
        )
    return value


def bytes_per_s(text: str) -> float:
    """Bytes per second of a link: `"100Mbit"`, `"1Gbit"`, `"1.2GB"`, `"inf"`.

    A prefix is a power of 1000. The unit may end with `/s`.

    Raises:
        ValueError: `text` is no such rate.
    """
    if text == "inf":
        return math.inf
    match = re.fullmatch(
        _NUMBER + r"\s*(?P<prefix>[kMGT]?)(?P<unit>bit|B)(?:/s)?", text
    )
    # Without a unit, 0 is the only rate that is clear.
    if match is None and text != "0":
        raise ValueError(
            "Expected the rate of a link in bits or bytes per second, such as "
            f"100Mbit, 1Gbit or 1.2GB, or inf. Received: {text!r}."
        )
    if match is None:
        return 0.0
    value = float(match["number"]) * _PREFIXES[match["prefix"]]
    return value / 8 if match["unit"] == "bit" else value


def seconds(text: str) -> float:
    """Seconds: `"0.1ms"`, `"50us"`, `"2s"`, `"0"`.

    Raises:
        ValueError: `text` is no time.
    """
    match = re.fullmatch(_NUMBER + r"\s*(?P<unit>s|ms|us|ns)", text)
    if match is None and text != "0":
        raise ValueError(
            "Expected a time in s, ms, us or ns, such as 0.1ms. Received: "
            f"{text!r}."
        )
    if match is None:
        return 0.0
    return float(match["number"]) * _SECONDS[match["unit"]]


def interval(name: str, given: float | str) -> float:
    """Seconds between two things: a number, or `"30s"`, `"5min"`, `"2h"`.

    Args:
        name: Name of the argument, for the message.
        given: What was given for it.

    Raises:
        ValueError: It is no time above 0.
    """
    interval_s: Any = given
    if isinstance(given, str):
        number = given.rstrip("smhin ")
        unit = given[len(number) :].strip() or "s"
        try:
            interval_s = float(number) * _INTERVALS[unit]
        except (ValueError, KeyError):
            interval_s = None
    if not isinstance(interval_s, int | float) or not interval_s > 0:
        raise ValueError(
            f"Expected `{name}` to be seconds, or text such as '30s' or "
            f"'5min'. Received: {name}={given!r}."
        )
    return float(interval_s)


def size(text: str) -> int:
    """Bytes: `"8GiB"` is of 1024, `"244MB"` of 1000, `"77"` as it stands.

    Raises:
        ValueError: `text` is no size, or not above 0.
    """
    match = re.fullmatch(_NUMBER + r"\s*(?P<unit>[kKMGT]?i?B?)", text)
    known = match is not None and match["unit"] in _SIZES
    if match is None or not known or not float(match["number"]):
        raise ValueError(
            "Expected bytes above 0, such as 8GiB (of 1024) or 244MB (of "
            f"1000). Received: {text}."
        )
    return max(1, round(float(match["number"]) * _SIZES[match["unit"]]))


def watts(text: str) -> float:
    """Watts: `"15W"` or `"15"`.

    Raises:
        ValueError: `text` is no number of watts.
    """
    match = re.fullmatch(_NUMBER + r"\s*W?", text)
    if match is None:
        raise ValueError(f"Expected watts, such as 15W. Received: {text!r}.")
    return float(match["number"])


def link_words(rate: float) -> str:
    """Writes a rate in bytes per second as bits, which `bytes_per_s` reads."""
    if math.isinf(rate):
        return "inf"
    bits = 8 * rate
    for prefix in "TGMk":
        if bits >= _PREFIXES[prefix]:
            return f"{bits / _PREFIXES[prefix]:.4g}{prefix}bit"
    return f"{bits:.4g}bit"


def three_digits(number: float) -> str:
    """Writes a number by three digits, or all before its point.

    ```python
    three_digits(0.1234), three_digits(12345.6)  # ("0.123", "12346")
    ```
    """
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def seconds_text(seconds: float) -> str:
    """Writes seconds as people read them: `"1.23 s"`, `"45.6 ms"`."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{three_digits(1e3 * seconds)} ms"
