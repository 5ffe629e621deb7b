"""Rates, sizes and times, as people write them."""

from __future__ import annotations

import math
import re

_NUMBER = r"(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)"
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


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
