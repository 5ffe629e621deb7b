"""How the weights are cut into pieces that travel while others are computed.

A backward pass begins with the last layer. So the weights' vector is cut from
its end, where gradients are ready first, into pieces of about one size: each
travels to the device that adds and steps it, and back, while gradients of the
layers before are computed. (Li et al., *PyTorch Distributed*, VLDB 2020,
section 3.2: the buckets of DistributedDataParallel.)
"""

from __future__ import annotations

from collections.abc import Sequence

from tf_convpar.placement._vector_pieces import piece_sizes

# Variables of fewer bytes share a piece: each message costs time by itself.
_LEAST_BYTES = 2**20
# A larger variable is cut, so that none waits long behind it on a wire.
_MOST_BYTES = 2**24


def gradient_pieces(
    sizes: Sequence[int], value_bytes: int, devices: Sequence[str]
) -> tuple[list[int], list[str]]:
    """Cuts a vector of variables into pieces, and gives each to a device.

    ```python
    lengths, owners = gradient_pieces([500, 20, 9000], 4, devices)
    ```

    A large variable is a piece by itself, which need not be copied to travel.

    Args:
        sizes: Values of each variable, in the order of layers.
        value_bytes: Bytes of a value.
        devices: Who adds and steps pieces: each has about as many bytes.

    Returns:
        Values of each piece, in the order of the vector, at least one for
        each device; and the name of each piece's device, which is the first
        device for the first piece.
    """
    whole, count = sum(sizes), len(devices)
    fair = -(-whole // count)
    least = max(1, min(_LEAST_BYTES // value_bytes, fair // 4))
    most = min(_MOST_BYTES // value_bytes, fair)
    pieces: list[int] = []
    shared = 0
    for size in reversed(sizes):
        if size < least:
            shared += size
        if shared >= least or (shared and size >= least):
            pieces.append(shared)
            shared = 0
        if size >= least:
            pieces += piece_sizes(size, -(-size // most))
    if shared:
        pieces.append(shared)
    if len(pieces) < count:
        pieces = piece_sizes(whole, count)
    load = dict.fromkeys(devices, 0)
    owners = []
    for size in pieces:
        owner = min(devices, key=load.__getitem__)
        load[owner] += size
        owners.append(owner)
    # The first piece is the first device's, where all come together.
    swapped = {devices[0]: owners[-1], owners[-1]: devices[0]}
    return pieces[::-1], [swapped.get(o, o) for o in reversed(owners)]
