"""What replicas send: vectors in pieces, in rounds, and in fewer bits.

Numbers and names only. What executes and what is predicted read the same.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from collections.abc import Sequence

from tf_convpar.ops import BLOCK
from tf_convpar.ops import SCALE_BYTES

_BITS = {"float32": 32, "bfloat16": 16, "int8": 8, "int4": 4}
_SCALED = ("int8", "int4")

# Bytes from one device to another.
Messages = Mapping[tuple[str, str], int]


def check_wire(name: str) -> None:
    """Checks the name of a form in which vectors travel.

    Raises:
        ValueError: There is none of that name.
    """
    if name not in _BITS:
        names = ", ".join(f'"{known}"' for known in _BITS)
        raise ValueError(f"Expected wire to be {names}. Received: {name!r}.")


def wire_bytes(name: str, values: int) -> int:
    """Bytes of so many values: their bits, and the scales of blocks.

    ```python
    wire_bytes("int8", 512)  # 520
    wire_bytes("int8", 500)  # as many, as blocks are filled up
    ```
    """
    if name not in _SCALED:
        return values * _BITS[name] // 8
    blocks = -(-values // BLOCK)
    return blocks * (BLOCK * _BITS[name] // 8 + SCALE_BYTES)


def piece_sizes(values: int, count: int, block: int = 1) -> list[int]:
    """Values of each piece of a vector, which differ by a block at most.

    ```python
    piece_sizes(10, 3)  # [3, 3, 4]
    ```

    Args:
        values: Length of the vector, a multiple of `block`.
        count: Number of pieces.
        block: Values that stay together.
    """
    blocks = values // block
    ends = [j * blocks // count * block for j in range(count + 1)]
    return [b - a for a, b in zip(ends, ends[1:], strict=False)]


def fragment_values(values: int, fragments: int) -> int:
    """Values of a fragment of a vector that is filled up to whole blocks."""
    return -(-values // (fragments * BLOCK)) * BLOCK


def check_rounds(every: int, fragments: int) -> None:
    """Checks how often replicas meet that meet seldom.

    Raises:
        ValueError: `fragments` does not divide `every`, or one is below 1.
    """
    if fragments < 1 or every < 1 or every % fragments:
        raise ValueError(
            "Expected `every` to be a multiple of `fragments`, both at "
            f"least 1. Received: every={every}, fragments={fragments}."
        )


def check_pushes(n_fetch: int, n_push: int) -> None:
    """Checks how often Downpour's replicas fetch and push.

    Raises:
        ValueError: `n_push` does not divide `n_fetch`, or one is below 1.
    """
    if n_push < 1 or n_fetch < 1 or n_fetch % n_push:
        raise ValueError(
            "Expected n_fetch to be a multiple of n_push, both at least 1. "
            f"Received: n_fetch={n_fetch}, n_push={n_push}."
        )


def exchange_messages(
    devices: Sequence[str], owners: Sequence[str], pieces: Sequence[int]
) -> tuple[Messages, Messages]:
    """Bytes of a sum in pieces: each goes to its owner, and from it to all.

    ```python
    there, back = exchange_messages(["a", "b"], ["a", "b"], [100, 120])
    there["a", "b"], back["a", "b"]  # 120, 100
    ```

    Args:
        devices: Names of the devices.
        owners: Who adds each piece.
        pieces: Bytes of each piece.

    Returns:
        What each sends to those who add, and what these send to all.
    """
    there: collections.Counter[tuple[str, str]] = collections.Counter()
    for owner, nbytes in zip(owners, pieces, strict=True):
        for device in devices:
            if device != owner:
                there[device, owner] += nbytes
    return there, {(b, a): n for (a, b), n in there.items()}
