"""`layer.trainable = ...` reaches the parallel copy of the layer too.

A program that fine-tunes keeps the model it began with: it makes a larger model
of it, trains that, and then writes `base.trainable = True`. If the larger model
has been made parallel in between, it has other layers, which must hear of the
change. Keras has no hook for this, so the one property is wrapped. It does as
before for layers that were never copied.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import keras

_FOLLOWERS = "_parallel_copies"


class Followers(weakref.WeakSet):
    """The copies of one layer that are still there."""


def follow(pairs: Iterable[tuple[Any, Any]]) -> None:
    """Lets copies take over changes of `trainable` of their originals.

    Args:
        pairs: Layers, each with its copy.
    """
    for old, new in pairs:
        if isinstance(old, keras.layers.Layer):
            vars(old).setdefault(_FOLLOWERS, Followers()).add(new)


_trainable: Any = keras.layers.Layer.trainable


def _set_trainable(self: keras.layers.Layer, value: bool) -> None:
    _trainable.fset(self, value)
    for copy in vars(self).get(_FOLLOWERS, ()):
        copy.trainable = value


keras.layers.Layer.trainable = property(
    _trainable.fget, _set_trainable, doc=_trainable.__doc__
)
