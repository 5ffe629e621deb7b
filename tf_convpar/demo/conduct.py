"""Starts the processes of a demo, shows their progress and ends them."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from rich import progress as rich_progress
from rich.console import Console

from tf_convpar import machines
from tf_convpar.cluster.local_cluster import LocalCluster
from tf_convpar.cluster.local_cluster import local_workers
from tf_convpar.cluster.process import Process
from tf_convpar.cluster.process import how
from tf_convpar.demo import slowed
from tf_convpar.demo.chief import EVENT
from tf_convpar.demo.chief import REPORT
from tf_convpar.demo.report import Report
from tf_convpar.demo.settings import ENVIRONMENT
from tf_convpar.demo.settings import Settings

_POLL_S = 0.2


class DemoError(RuntimeError):
    """The demo could not run as it was asked to; the message says why."""


def conduct(settings: Settings, workers: int, console: Console) -> Report:
    """Runs a demo in processes of its own.

    ```python
    report = conduct(settings, workers=2, console=Console())
    ```

    What it measures and chooses is not kept: speeds are those of the demo.

    Args:
        settings: What to train, and where its files go.
        workers: Number of workers, besides the chief.
        console: The console that progress is shown on.

    Raises:
        DemoError: What was asked for is not possible here; or a process
            failed, and the message holds its output.
    """
    with (
        tempfile.TemporaryDirectory() as cache,
        _environment({**ENVIRONMENT, "TF_CONVPAR_CACHE": cache}),
        _shown(console) as show,
        # The chief waits for the workers, while all import TensorFlow at once.
        local_workers(workers, threads=1, wait=False) as cluster,
    ):
        _run_chief(settings, cluster, show)
    text = (settings.output / REPORT).read_text(encoding="utf-8")
    return Report.from_dict(json.loads(text))


def _run_chief(
    settings: Settings,
    cluster: LocalCluster,
    show: Callable[[dict[str, Any]], None],
) -> None:
    noise: list[str] = []
    errors: list[str] = []
    joined, done = threading.Event(), threading.Event()

    def on_line(line: str) -> None:
        if not line.startswith(EVENT):
            noise.append(line)
            return
        event = json.loads(line[len(EVENT) :])
        if "error" in event:
            errors.append(event["error"])
        elif "joined" in event:
            joined.set()
        elif "done" in event:
            done.set()
        else:
            show(event)

    show({"part": "Starting", "total": 1})
    command = [sys.executable, "-m", "tf_convpar.demo.chief"]
    with Process(
        [*command, settings.to_json()], env=cluster.env(), on_line=on_line
    ) as chief:
        pids = [worker.pid for worker in cluster.workers]
        cores = _pin(settings, [chief.pid, *pids])
        _, *parts = slowed.parts(1 + len(pids), settings.cores, settings.star)
        limited = [] if settings.star else pids
        with (
            # One device alone is measured as one of several is.
            machines.busy_neighbours(cores),
            slowed.to_parts(limited, parts) as slow,
        ):
            # This does not wait for the end of the process, which may take its
            # time to leave the cluster: nothing is lost when it is killed with
            # the workers.
            while not done.wait(_POLL_S):
                if joined.is_set():
                    slow()  # Not while all import TensorFlow.
                if chief.returncode is not None:
                    chief.wait()  # Until its last output has been read.
                    break
                _check_workers(cluster)
    if errors:
        raise DemoError(errors[0])
    if not done.is_set():
        raise DemoError(
            f"The chief ended with {how(chief.wait())}. It wrote:\n"
            + "\n".join(noise)
        )


def _pin(settings: Settings, pids: Sequence[int]) -> list[int]:
    """Binds each process to a core, and returns the cores that they have."""
    if not machines.can_pin():
        return []
    cores = machines.usable_cores()
    if settings.star:
        machines.pin(pids, cores)
        return cores[: len(pids)]
    # The workers have one together.
    machines.pin(pids[:1], cores)
    machines.pin(pids[1:], cores[1:2] or cores)
    return cores[:2]


def _check_workers(cluster: LocalCluster) -> None:
    """Raises DemoError if a worker has ended.

    The chief would wait for it, or fail in a less clear way.
    """
    for index, worker in enumerate(cluster.workers):
        if worker.returncode is not None:
            raise DemoError(
                f"Worker {index} ended with {how(worker.wait())}. "
                f"It wrote:\n{worker.output}"
            )


@contextlib.contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    """Changes this process' environment, which local workers inherit."""
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _shown(console: Console) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Shows the chief's events, with a bar for each part of its work.

    Where there is no terminal, each part has a line when it begins, after the
    time that has passed: bars would all come at the end.
    """
    if not console.is_terminal:
        yield _lines(console)
        return
    bars = rich_progress.Progress(
        rich_progress.TextColumn("{task.description:<34}"),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeElapsedColumn(),
        console=console,
    )

    def show(event: dict[str, Any]) -> None:
        if "part" in event:
            bars.add_task(event["part"], total=event["total"])
        else:
            bars.advance(bars.task_ids[-1], event["advance"])

    with bars:
        yield show


def _lines(console: Console) -> Callable[[dict[str, Any]], None]:
    start = time.monotonic()

    def show(event: dict[str, Any]) -> None:
        if "part" in event:
            minutes, seconds = divmod(int(time.monotonic() - start), 60)
            console.print(f"{minutes}:{seconds:02}  {event['part']}")
            console.file.flush()

    return show
