"""`layer.trainable = ...` reaches the parallel copy of the layer too.

Programs that fine-tune hold on to the model they began with: they make a
larger one of it, train that, and then write `base.trainable = True`. Made
parallel in between, the larger model is of other layers, which must hear of
it. Keras tells nobody: the one property is wrapped, and does as before for
layers that were never copied.
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
    """From now on copies are trained if their originals are.

    Args:
        pairs: Of layers, each before its copy.
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
