"""Keeps gradients where their forward op ran."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf


@contextlib.contextmanager
def same_device(device: str | None) -> Iterator[None]:
    """Opens the device scope of an op that has `device`, and only that.

    Args:
        device: a tensor's `device`; where it is empty the forward op had no
            scope, and neither gets its gradient.
    """
    if not device:
        yield
        return
    # A partial name such as /device:CPU:1 would take the rest from the scope
    # the gradient is computed in, hence the scope is cleared first.
    with tf.device(None), tf.device(device):
        yield
