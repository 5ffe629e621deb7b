"""Shows what is being measured, without disturbing the measurement."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn
from rich.progress import Progress
from rich.progress import TextColumn
from rich.progress import TimeElapsedColumn

# Seconds between lines where there is no terminal: a log, or a notebook.
_EVERY_S = 10.0


@contextlib.contextmanager
def progress(
    doing: str, say: Callable[[str], None]
) -> Iterator[Callable[[str], None]]:
    """Shows a few words beside a bar, drawn between measurements.

    ```python
    with progress("measuring vgg16", print) as report:
        planner.calibrate(model, strategy, 32, report=report)
    ```

    The bar is on stderr, if that is a terminal. Elsewhere there is a line at
    the first report, and one every ten seconds. Nothing is shown before the
    first report, as what is known already takes no time.

    Args:
        doing: What is being done, for the first line.
        say: Prints a line, where there is no terminal.

    Yields:
        A function that takes the words to show now.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(doing, say)
        return
    bar = Progress(
        BarColumn(20),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        # A thread that draws would be measured too.
        auto_refresh=False,
        transient=True,
    )
    with bar:
        # How much there is to measure is not known before.
        task = bar.add_task("", total=None)
        yield lambda now: bar.update(task, description=now, refresh=True)


def _lines(doing: str, say: Callable[[str], None]) -> Callable[[str], None]:
    start = time.monotonic()
    due = start

    def report(now: str) -> None:
        nonlocal due
        seconds = time.monotonic() - start
        if time.monotonic() < due:
            return
        if due == start:
            say(f"{doing} ...")
        else:
            say(f"{doing}, {seconds:.0f} s: {now}")
        due = time.monotonic() + _EVERY_S

    return report
