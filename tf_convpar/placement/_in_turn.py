"""Weights that travel ahead of time, in the order in which they are needed.

All weights can be sent as soon as a step begins, and then the first layer's
arrives among the last: transfers share a link. So each is sent when enough of
those before it have arrived. Maps and moments that are sent meanwhile wait for
no more than what is on the wire.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from collections.abc import Sequence

import tensorflow as tf

from tf_convpar.placement._exchange import everywhere
from tf_convpar.placement._sharded_tensor import ShardedTensor

# Bytes on their way: 8 ms of Gigabit Ethernet, or what ten messages wait for.
_ON_THEIR_WAY = 1 << 20
_NAME = "_convpar_sent"


@dataclasses.dataclass(frozen=True)
class _Sent:
    """A weight that has been sent.

    Attributes:
        bytes_: Of all of it.
        copies: By device: there once it has arrived.
    """

    bytes_: int
    copies: Mapping[str, tf.Tensor]


def everywhere_in_turn(
    x: tf.Tensor | ShardedTensor,
    devices: Sequence[str],
    owner: str,
    wire_dtype: str | None = None,
) -> list[tf.Tensor]:
    """As `everywhere`, but not before what was sent so has arrived.

    ```python
    copies = everywhere_in_turn(kernel, layout.devices, layout.owner)
    ```

    The order is that of the calls while a graph is traced; eager calls run in
    order anyway. Every device waits for its own copies, so that nobody is
    told to wait.

    Args:
        x: A weight, on `owner` or in shards.
        devices: Where it is needed.
        owner: The chief's device.
        wire_dtype: The dtype in which it and its gradients travel.

    Returns:
        One tensor per name, on that device.
    """
    if tf.executing_eagerly():
        return everywhere(x, devices, owner, wire_dtype)
    sent = _sent_in(tf.compat.v1.get_default_graph())
    copies = everywhere(x, devices, owner, wire_dtype, _arrived(sent))
    like = copies[0]
    bytes_ = like.dtype.size * math.prod(n or 1 for n in like.shape)
    sent.append(_Sent(bytes_, dict(zip(devices, copies, strict=True))))
    return copies


def _sent_in(graph: tf.Graph) -> list[_Sent]:
    """What has been sent so far; kept with the graph, and gone with it."""
    found: list[_Sent] | None = getattr(graph, _NAME, None)
    if found is None:
        found = []
        setattr(graph, _NAME, found)
    return found


def _arrived(sent: Sequence[_Sent]) -> Mapping[str, tf.Tensor]:
    """The last one that must have: those after it may be on their way."""
    on_their_way = 0
    for one in reversed(sent):
        if on_their_way >= _ON_THEIR_WAY:
            return one.copies
        on_their_way += one.bytes_
    return {}
