"""How feature maps get to where they are needed, by the three primitives.

Feature maps come as a tensor on the chief or as a `ShardedTensor`, and a
layer needs all of them on each of its devices (a convolution), or on each its
own channels (a depthwise one).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import tensorflow as tf

from tf_convpar import ops
from tf_convpar.placement._layout import Layout
from tf_convpar.placement._primitives import broadcast
from tf_convpar.placement._primitives import concat_shards
from tf_convpar.placement._primitives import device_type
from tf_convpar.placement._primitives import on_device
from tf_convpar.placement._sharded_tensor import ShardedTensor


def everywhere(
    x: tf.Tensor | ShardedTensor,
    devices: Sequence[str],
    owner: str,
    wire_dtype: str | None = None,
) -> list[tf.Tensor]:
    """All feature maps, on each device.

    ```python
    copies = everywhere(x, layout.devices, layout.owner, "bfloat16")
    ```

    A tensor is sent by its owner. Shards are sent by each device to all the
    others, and joined by each: an all-gather that passes no chief; partial
    gradients return to the device of the shard, and are added there.

    Args:
        x: A tensor on `owner`, or shards.
        devices: Where it is needed; a device may be named more than once, and
            is sent one copy.
        owner: The chief's device.
        wire_dtype: The dtype in which copies and partial gradients travel;
            None for `x`'s own.

    Returns:
        One tensor per name, on that device, in `x`'s dtype.
    """
    unique = list(dict.fromkeys(devices))
    if not isinstance(x, ShardedTensor):
        copies = broadcast(x, unique, owner, wire_dtype)
    else:
        sent = [
            broadcast(shard, unique, device, wire_dtype)
            for shard, device in zip(x.shards, x.layout.devices, strict=True)
        ]
        axis = -1 if x.layout.axis == -1 else 1
        copies = [
            concat_shards([copies[i] for copies in sent], device, axis)
            for i, device in enumerate(unique)
        ]
    by_device = dict(zip(unique, copies, strict=True))
    return [by_device[device] for device in devices]


def apart(x: tf.Tensor | ShardedTensor, layout: Layout) -> ShardedTensor:
    """Of the feature maps each device its own channels.

    ```python
    apart(x, layout).shards[1]  # on layout.devices[1]
    ```

    What lies so already stays where it is. Anything else is joined, cut on
    the owner and sent.

    Args:
        x: A tensor on the layout's owner, or shards.
        layout: Which channels each device gets; its `wire` is the dtype in
            which they and their gradients travel.
    """
    if isinstance(x, ShardedTensor):
        if x.layout.matches(layout):
            return x
        x = x.joined()
    dtype = x.dtype
    wire = tf.as_dtype(layout.wire or dtype)
    travels = [device != layout.owner for device in layout.devices]
    axis = -1 if layout.axis == -1 else 1
    native = False if device_type(layout.owner) != "CPU" else None

    def cut(x: tf.Tensor) -> list[tf.Tensor]:
        dtypes = [wire if t else dtype for t in travels]
        return ops.split_shards(x, layout.sizes, axis, dtypes, native=native)

    pieces = on_device(cut, layout.owner)(x)
    unpack = functools.partial(tf.cast, dtype=dtype)
    return ShardedTensor(
        [
            on_device(unpack, device)(piece)
            for piece, device in zip(pieces, layout.devices, strict=True)
        ],
        layout,
    )
