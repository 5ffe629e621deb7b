"""Measures in a thread of its own, which ends when nobody waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any
from typing import TypeVar

from tf_convpar.planner.measure import cache

Result = TypeVar("Result")
Report = Callable[[str], None]


class Stopped(Exception):
    """Nobody waits for what is measured."""


def in_own_thread(
    measure: Callable[..., Result], *args: Any, report: Report
) -> Result:
    """Runs a function in another thread, and returns its result.

    ```python
    calibration = in_own_thread(measured, graph, devices, report=report)
    ```

    The caller may be in the scope of a strategy, under a tape, or tracing a
    graph. The thread is in none of these. If the caller is interrupted, the
    function ends at its next report.

    Args:
        measure: Function that takes `args`, and then `report`.
        *args: Its arguments.
        report: Function that is called with the name of what is measured next.
    """
    over = threading.Event()

    def checked(name: str) -> None:
        if over.is_set():
            raise Stopped
        report(name)

    measures = cache.measures.get()

    def run() -> Result:
        cache.measures.set(measures)
        return measure(*args, checked)

    with futures.ThreadPoolExecutor(1) as thread:
        try:
            return thread.submit(run).result()
        finally:
            over.set()
