"""A copy that a thread makes while training goes on."""

from __future__ import annotations

import concurrent.futures
import warnings
from collections.abc import Callable
from typing import Any

import tensorflow as tf


class Background:
    """Makes one copy after the other, and knows how the last one ended.

    ```python
    copies = Background()
    copies.start(fetch, values)  # holds nothing up
    ...
    copies.arrived()
    ```
    """

    def __init__(self) -> None:
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._coming: concurrent.futures.Future[None] | None = None

    @property
    def under_way(self) -> bool:
        """Whether a copy was begun, and nobody has asked how it ended."""
        return self._coming is not None

    def start(self, copy: Callable[..., None], *args: Any) -> None:
        """Calls `copy` on the thread."""
        self._coming = self._thread.submit(copy, *args)

    def arrived(self, wait: bool = False) -> bool:
        """Whether the last copy has come; to be asked once for each.

        If a worker was lost meanwhile, the next step finds out. Any other
        failure is warned of.

        Args:
            wait: Whether to wait for the copy. Otherwise ask again if it is
                still under way.
        """
        if self._coming is None or not (wait or self._coming.done()):
            return False
        coming, self._coming = self._coming, None
        error = coming.exception()
        if error is not None and not isinstance(error, tf.errors.OpError):
            warnings.warn(
                "Could not copy the model, whose batches are kept until it "
                f"is: {type(error).__name__}: {error}.",
                RuntimeWarning,
                stacklevel=1,
            )
        return error is None

    def end(self) -> None:
        """Waits for what is under way; there will be no other."""
        self._thread.shutdown(wait=True)
