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

from tf_convpar._compat.patches import replace

_FOLLOWERS = "_parallel_copies"


# The original of each copy.
_originals: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = (
    weakref.WeakKeyDictionary()
)


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
            _originals[new] = weakref.ref(old)


def succeed(pairs: Iterable[tuple[Any, Any]]) -> None:
    """Lets layers follow in the place of the copies that they replace.

    Args:
        pairs: Copies that leave, each with the layer in its place.
    """
    for old, new in pairs:
        original = _originals.get(old, lambda: None)()
        if original is not None:
            follow([(original, new)])


def _followed(trainable: Any) -> property:
    def set_trainable(self: keras.layers.Layer, value: bool) -> None:
        trainable.fset(self, value)
        for copy in vars(self).get(_FOLLOWERS, ()):
            copy.trainable = value

    return property(trainable.fget, set_trainable, doc=trainable.__doc__)


replace("keras:layers.Layer.trainable", by=_followed)
