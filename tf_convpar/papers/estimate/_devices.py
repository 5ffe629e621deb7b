"""How many replicas, and how many parameter servers: paper 2's lemmas.

That there are two such lemmas, and what they are for, is from Zou et al.,
*Distributed Training Large-Scale Deep Architectures* (2017). The text of that
paper was not at hand: definitions, formulas and derivations are ours.

The first is about data parallelism. Let one device take `T_C` seconds for the
part of a step that replicas share between them. Let every step cost `T_O`
seconds that do not shrink with their number `G`: exchange of gradients,
update, input that arrives late. With the *overhead ratio* `R = T_O / T_C` a
step of `G` devices takes

    T(G) = T_C / G + T_O = T_C (1/G + R)

and so

    speedup     S(G) = T(1) / T(G) = (1 + R) / (1/G + R) = G (1 + R) / (1 + G R)
    efficiency  a(G) = S(G) / G    = (1 + R) / (1 + G R)

Solved for the devices that a speedup takes, and for the overhead that an
efficiency allows:

    G = S / (1 + R - S R)          where S < (1 + R) / R, the limit of S(G)
    R = (1 - a) / (a G - 1)        where a > 1/G, the limit of a(G) for large R

It is Amdahl's law with a serial share of `R / (1 + R)`.
"""

from __future__ import annotations

import math
from typing import Any

# The relative rounding error of a quotient that should be whole.
_ROUNDING = 1e-12


def speedup(devices: int, overhead_ratio: float) -> float:
    """Speedup of a training step on several equal devices, against one.

    ```python
    speedup(8, 0.05)  # 6.0: seconds of one device / seconds of eight
    ```

    Args:
        devices: Number of replicas, each with its share of the mini-batch.
        overhead_ratio: `R = T_O / T_C`, without a unit: the seconds of a step
            that devices do not share, divided by the seconds that one device
            takes for what they share.

    Returns:
        `G (1 + R) / (1 + G R)`: between 1 and `devices`.

    Raises:
        ValueError: Less than one device, or a negative ratio.
    """
    return _whole("devices", devices) * efficiency(devices, overhead_ratio)


def efficiency(devices: int, overhead_ratio: float) -> float:
    """Efficiency of several devices: their speedup divided by their number.

    ```python
    efficiency(8, 0.05)  # 0.75
    ```

    Args:
        devices: Number of replicas; see `speedup`.
        overhead_ratio: `R = T_O / T_C`; see `speedup`.

    Returns:
        `(1 + R) / (1 + G R)`: at most 1, and more than `1 / devices`.

    Raises:
        ValueError: Less than one device, or a negative ratio.
    """
    count = _whole("devices", devices)
    ratio = _ratio(overhead_ratio)
    return (1 + ratio) / (1 + count * ratio)


def devices_for(speedup: float, overhead_ratio: float) -> int:
    """The fewest devices that reach a speedup.

    ```python
    devices_for(6.0, 0.05)  # 8
    ```

    Args:
        speedup: The speedup wanted, at least 1.
        overhead_ratio: `R = T_O / T_C`; see the function `speedup`.

    Returns:
        `S / (1 + R - S R)`, rounded up to a whole number.

    Raises:
        ValueError: No number of devices reaches the speedup, and the message
            says the limit; or the speedup is below 1, or the ratio negative.
    """
    wanted = _number("speedup", speedup)
    ratio = _ratio(overhead_ratio)
    if wanted < 1:
        raise ValueError(
            "Expected `speedup` to be at least 1, that of one device. "
            f"Received: {speedup}."
        )
    rest = 1 + ratio - wanted * ratio
    if rest <= _ROUNDING:
        raise ValueError(
            f"Expected `speedup` to be below (1 + R) / R = "
            f"{(1 + ratio) / ratio:.4g}, which no number of devices reaches "
            f"with an overhead ratio R = {ratio:g}. Received: {speedup:g}. "
            "A larger mini-batch or a faster exchange of gradients makes the "
            "ratio smaller."
        )
    count = _up(wanted / rest)
    # The quotient is near 0 / 0 close to the limit; the lemma itself is not.
    fewer = max(1, count - 1)
    enough = wanted * (1 - _ROUNDING) <= fewer * efficiency(fewer, ratio)
    return fewer if enough else count


def overhead_for(efficiency: float, devices: int) -> float:
    """The largest overhead ratio that allows an efficiency of devices.

    ```python
    overhead_for(0.8, 4)  # 0.0909: 9.1 % of one device's computation
    ```

    Args:
        efficiency: The efficiency wanted, more than 0 and at most 1.
        devices: Number of replicas.

    Returns:
        `(1 - a) / (a G - 1)`. It is infinite where `a <= 1/G`: any overhead
        leaves that efficiency.

    Raises:
        ValueError: An efficiency that is out of range, or less than one device.
    """
    wanted = _number("efficiency", efficiency)
    count = _whole("devices", devices)
    if not 0 < wanted <= 1:
        raise ValueError(
            "Expected `efficiency` to be more than 0 and at most 1. "
            f"Received: {efficiency}."
        )
    rest = wanted * count - 1
    if rest <= 0:
        return math.inf
    return (1 - wanted) / rest


def parameter_servers(
    parameter_bytes: float,
    workers: int,
    bytes_per_s: float,
    compute_s: float,
    full_duplex: bool = False,
) -> int:
    """The fewest parameter servers that workers do not wait for.

    ```python
    # 244 MB, 8 workers, 10 Gbit/s, a second of computation:
    parameter_servers(244e6, 8, 1.25e9, 1.0)  # 4
    ```

    In each step every one of `N_w` workers pushes `S_p` bytes of gradients
    and pulls `S_p` bytes of parameters. They are spread evenly over `N_ps`
    servers, each with an interface of `B` bytes per second, so that each is
    busy for

        2 S_p N_w / (N_ps B)  seconds

    if pushes and pulls take turns, and half as long if both go on at once.
    Meanwhile workers compute for `T_C` seconds. All traffic can hide behind
    that if

        N_ps >= 2 S_p N_w / (B T_C)

    Even shares and perfect overlap are the best case, so it is a lower bound.

    Args:
        parameter_bytes: `S_p`, the bytes of all parameters as they travel.
        workers: `N_w`, the number of workers.
        bytes_per_s: `B`, the bytes (not bits) per second of a server's
            interface in one direction.
        compute_s: `T_C`, the seconds of a worker's forward and backward pass.
        full_duplex: Whether a server sends and receives at full rate at once.

    Returns:
        Number of servers, at least one.

    Raises:
        ValueError: An argument that is not positive.
    """
    size = _positive("parameter_bytes", parameter_bytes)
    count = _whole("workers", workers)
    rate = _positive("bytes_per_s", bytes_per_s)
    seconds = _positive("compute_s", compute_s)
    ways = 1 if full_duplex else 2
    return _up(ways * size * count / (rate * seconds))


def _up(quotient: float) -> int:
    """Rounds up to a whole number of at least 1, but no rounding errors."""
    if not math.isfinite(quotient):
        raise ValueError(
            "Expected numbers whose quotient is finite. Received: one of "
            f"{quotient}."
        )
    nearest = round(quotient)
    if abs(quotient - nearest) <= _ROUNDING * max(1.0, quotient):
        return max(1, nearest)
    return max(1, math.ceil(quotient))


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(
            f"Expected `{name}` to be a number. Received: {value!r}."
        )
    if not math.isfinite(value):
        raise ValueError(f"Expected `{name}` to be finite. Received: {value}.")
    return float(value)


def _positive(name: str, value: Any) -> float:
    number = _number(name, value)
    if number <= 0:
        raise ValueError(
            f"Expected `{name}` to be more than 0. Received: {value}."
        )
    return number


def _ratio(value: Any) -> float:
    number = _number("overhead_ratio", value)
    if number < 0:
        raise ValueError(
            "Expected `overhead_ratio` to be at least 0: seconds that devices "
            "do not share, by seconds that they do. Received: "
            f"{value}."
        )
    return number


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(
            f"Expected `{name}` to be a whole number of at least 1. "
            f"Received: {value!r}."
        )
    return value
