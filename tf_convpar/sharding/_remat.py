"""Layers of a `keras.RematScope`, which compute again for their gradients.

TensorFlow's function for it takes and returns tensors, all of one device.
Layers that work on shards keep what they have computed: each device has its
part of it only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tf_convpar._compat.patches import replace
from tf_convpar.layers import ConvParallel
from tf_convpar.layers import takes_shards
from tf_convpar.sharding._attach import OnSamples
from tf_convpar.sharding._attach import OnShards


def _but_on_shards(remat: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(remat)
    def wrapped(f: Callable[..., Any]) -> Callable[..., Any]:
        layer = getattr(f, "__self__", None)
        spread = isinstance(layer, ConvParallel) and layer.is_spread
        if takes_shards() and (spread or isinstance(f, OnSamples | OnShards)):
            return f
        return remat(f)

    return wrapped


replace("keras.src.backend.common.remat:remat", by=_but_on_shards)
