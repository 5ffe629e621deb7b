"""Errors of a cluster that may be over on another try."""

from __future__ import annotations

import tensorflow as tf

_MOST_TRIES = 3


class Tries:
    """Tries, one after another, of what fails though no task is lost.

    ```python
    tries = Tries()
    while True:
        try:
            return step()
        except tf.errors.OpError as error:
            if not tries.again(error):
                raise
    ```
    """

    def __init__(self) -> None:
        self._failed = 0

    def again(self, error: tf.errors.OpError) -> bool:
        """Whether it may be over on another try, of which there are three.

        A connection failed and works again; or a task that hung had calls left
        from before, and TensorFlow clears them away under the number that those
        of the cluster it has joined again go by ("Cleanup ...").
        """
        self._failed += 1
        passing = tf.errors.UnavailableError | tf.errors.AbortedError
        return isinstance(error, passing) and self._failed < _MOST_TRIES
