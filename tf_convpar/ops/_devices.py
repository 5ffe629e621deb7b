"""Keeps gradients where their forward op ran."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf


@contextlib.contextmanager
def same_device(device: str | None) -> Iterator[None]:
    """Opens a device scope for `device` that ignores all outer scopes.

    Args:
        device: the `device` of a tensor. Where it is empty, the forward op had
            no device scope, so its gradient gets none either.
    """
    if not device:
        yield
        return
    # The outer scope is cleared first: a partial name such as /device:CPU:1
    # would take its missing parts from the scope of the gradient.
    with tf.device(None), tf.device(device):
        yield
