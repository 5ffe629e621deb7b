"""Reads and checks the arguments of `ConvParallelStrategy`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from collections.abc import Sequence

from tf_convpar.plans import ByLayer
from tf_convpar.plans import check_shares
from tf_convpar.plans import load
from tf_convpar.strategy import devices as devices_lib

WIRE_DTYPES = ("float32", "bfloat16", "float16")


def check_wire_dtype(wire_dtype: str | None) -> None:
    """Raises ValueError unless feature maps can travel in this dtype."""
    if wire_dtype is not None and wire_dtype not in WIRE_DTYPES:
        raise ValueError(
            f"Expected `wire_dtype` to be one of {WIRE_DTYPES} or None. "
            f"Received: wire_dtype={wire_dtype!r}."
        )


def chief_device(names: Sequence[str], chosen: str | None) -> str:
    """The device for all that is not split."""
    if chosen is not None:
        return devices_lib.check([chosen])[0]
    here = f"{devices_lib.here_prefix()}/"
    local = [name for name in names if name.startswith(here)]
    return (local or devices_lib.available())[0]


def read_plan(
    plan: Mapping[str, Sequence[float]] | str | None,
) -> tuple[Mapping[str, Sequence[float]], bool]:
    """The entry of each layer, and whether layers are planned when built."""
    if plan is None or plan == "auto":
        return {}, plan == "auto"
    if isinstance(plan, str | os.PathLike):
        plan = load(plan)
    if isinstance(plan, Mapping):
        ByLayer("plan", plan)  # Its keys are regular expressions.
        return plan, False
    raise ValueError(
        "Expected `plan` to map layer names to kernels per device, such as "
        "{'conv2d': (3, 1)}, or to be the path of a plan's file, or 'auto'. "
        f"Received: plan={plan!r}."
    )


def read_shares(
    shares: Sequence[float] | None, automatic: bool
) -> tuple[float, ...] | None:
    """The shares as plain numbers, one for each device."""
    if shares is not None and automatic:
        raise ValueError(
            "Expected `shares`, or plan='auto', which measures what shares "
            f"are best. Received both: shares={tuple(shares)}."
        )
    return check_shares("shares", shares)


def by_device(
    shares: Sequence[float] | None, names: Sequence[str]
) -> dict[str, float]:
    """Each device's share; none if there are no shares."""
    if shares is None:
        return {}
    if len(shares) != len(names):
        raise ValueError(
            f"Expected `shares` to be one number for each of {len(names)} "
            f"devices, {list(names)}. Received {len(shares)}: "
            f"shares={tuple(shares)}."
        )
    return dict(zip(names, shares, strict=True))
