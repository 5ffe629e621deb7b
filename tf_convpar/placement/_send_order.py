"""Weights that travel ahead of time, in the order in which they are needed.

If all weights were sent as soon as a step begins, the first layer's would
arrive among the last, since transfers share a link. So each is sent when
enough of those before it have arrived. Maps and moments that are sent
meanwhile wait for no more than what is on the wire.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import tensorflow as tf

from tf_convpar.placement._exchange import everywhere
from tf_convpar.placement._sharded_tensor import ShardedTensor

# Bytes of weights that may be on their way at once. Gigabit Ethernet sends them
# in 8 ms, which is about the latency of ten messages.
_ON_THEIR_WAY = 1 << 20
_NAME = "_convpar_sent"


@dataclasses.dataclass(frozen=True)
class _Sent:
    """A weight that has been sent.

    Attributes:
        bytes_: Bytes of the whole weight, in its own dtype.
        copies: The weight on each device, by device. The tensor is computed
            when the weight has arrived.
    """

    bytes_: int
    copies: Mapping[str, tf.Tensor]


def everywhere_in_turn(
    x: tf.Tensor | ShardedTensor,
    devices: Sequence[str],
    owner: str,
    wire_dtype: str | None = None,
) -> list[tf.Tensor]:
    """Sends a weight `everywhere`, after weights that were sent before it.

    ```python
    copies = everywhere_in_turn(kernel, layout.devices, layout.owner)
    ```

    The order is that of the calls while a graph is traced. Eager calls run in
    order anyway. Each device waits for its own copies of earlier weights, so
    no message has to tell it when to send.

    Args:
        x: A weight, on `owner` or in shards.
        devices: Names of the devices that need it.
        owner: The chief's device.
        wire_dtype: The dtype in which it and its gradients travel; None for
            its own.

    Returns:
        One tensor per name, on that device.
    """
    if tf.executing_eagerly():
        return everywhere(x, devices, owner, wire_dtype)
    bytes_ = x.dtype.size * math.prod(n or 1 for n in x.shape)
    with in_turn(bytes_) as turn:
        copies = everywhere(x, devices, owner, wire_dtype, turn.after)
        turn.arrived = dict(zip(devices, copies, strict=True))
    return copies


@dataclasses.dataclass
class Turn:
    """When something is sent.

    Attributes:
        after: For each device, a tensor on it that is there before.
        arrived: For each device, a tensor on it that is there when what was
            sent has arrived; to be filled in.
    """

    after: Mapping[str, tf.Tensor]
    arrived: Mapping[str, tf.Tensor] = dataclasses.field(default_factory=dict)


@contextlib.contextmanager
def in_turn(bytes_: int) -> Iterator[Turn]:
    """Lets so many bytes be sent after what was sent before, in a graph."""
    sent = _sent_in(tf.compat.v1.get_default_graph())
    turn = Turn(_arrived(sent))
    yield turn
    sent.append(_Sent(bytes_, turn.arrived))


def _sent_in(graph: tf.Graph) -> list[_Sent]:
    """Weights sent so far, in order; the list is an attribute of the graph."""
    weights: list[_Sent] | None = getattr(graph, _NAME, None)
    if weights is None:
        weights = []
        setattr(graph, _NAME, weights)
    return weights


def _arrived(sent: Sequence[_Sent]) -> Mapping[str, tf.Tensor]:
    """Copies of the last weight that must have arrived before another is sent.

    Those sent after it may still be on their way. {} if there is no such
    weight.
    """
    on_their_way = 0
    for one in reversed(sent):
        on_their_way += one.bytes_
        if on_their_way > _ON_THEIR_WAY:
            return one.copies
    return {}
