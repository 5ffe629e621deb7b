"""Repeats calls that failed by a transient error, with no task lost."""

from __future__ import annotations

import time

import tensorflow as tf

# How many calls a task that returns has left behind, and for how long, is not
# known. Three tries at once were too few, and so were 3.1 s on a machine that
# was busy with other things. Together they wait 6.3 s.
_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)


class Retries:
    """Attempts at a call that fails although no task is lost.

    ```python
    tries = Retries()
    while True:
        try:
            return step()
        except tf.errors.OpError as error:
            if not tries.should_retry(error):
                raise
    ```
    """

    def __init__(self) -> None:
        self._failed = 0

    def should_retry(self, error: tf.errors.OpError) -> bool:
        """Whether to try again; pauses first.

        A connection failed and works again; or a task that hung had calls left
        from before, and TensorFlow clears them away under the number that those
        of the cluster it has joined again go by ("Cleanup ...").
        """
        passing = tf.errors.UnavailableError | tf.errors.AbortedError
        if not isinstance(error, passing) or self._failed == len(_PAUSES_S):
            return False
        time.sleep(_PAUSES_S[self._failed])
        self._failed += 1
        return True
