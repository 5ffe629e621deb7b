"""Workers that are lost while Keras waits for all of them.

When an epoch is at its end, `fit`, `evaluate` and `predict` wait for every task
of the cluster, also for one that died after its last step.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_convpar._compat.patches import replace
from tf_convpar.cluster.transient_errors import Retries

_recoveries: list[Callable[[], bool]] = []


@contextlib.contextmanager
def survived(recover: Callable[[], bool]) -> Iterator[None]:
    """Context in which waiting for all tasks goes on when some are lost.

    Args:
        recover: Function that is called when waiting failed. It returns whether
            tasks were lost, and the model is complete without them.
    """
    _recoveries.append(recover)
    try:
        yield
    finally:
        _recoveries.remove(recover)


def _surviving(sync: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(sync)
    def wrapped(self: Any) -> None:
        tries = Retries()
        while True:
            try:
                sync(self)
                return
            except tf.errors.OutOfRangeError:
                raise  # The end of the data.
            except tf.errors.OpError as error:
                if any(recover() for recover in list(_recoveries)):
                    continue
                if not (_recoveries and tries.should_retry(error)):
                    raise

    return wrapped


replace(
    "keras.src.backend.tensorflow.trainer:TFEpochIterator.tf_sync",
    by=_surviving,
)
