"""Errors of a cluster that may be over on another try."""

from __future__ import annotations

import tensorflow as tf

# Tries, one after another, of what fails though no task is lost.
MOST_TRIES = 3


def is_passing(error: tf.errors.OpError) -> bool:
    """Whether it may be over on another try, though no task is lost.

    A connection failed and works again; or a task that hung had calls left from
    before, and TensorFlow clears them away under the number that those of the
    cluster it has joined again go by ("Cleanup ...").
    """
    return isinstance(
        error, tf.errors.UnavailableError | tf.errors.AbortedError
    )
