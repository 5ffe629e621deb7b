"""Waits for a program and its workers to end, and gives the exit code."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time

import click

from tf_convpar.cli._program_liveness import ProgramLiveness
from tf_convpar.cli._restarts import Restarted
from tf_convpar.cli._signals import GRACE_S
from tf_convpar.cli._signals import Signals
from tf_convpar.cluster.process import Process

_POLL_S = 0.1


def exit_code(
    chief: Restarted,
    workers: dict[str, Restarted],
    signals: Signals,
    liveness: ProgramLiveness,
) -> int:
    """Waits until the program ends, or must; the exit code for the shell.

    Args:
        chief: The program.
        workers: Workers by their names.
        signals: Signals, of which early ones are passed on to the program now.
        liveness: Knows whether the program goes on without a worker.
    """
    signals.forward_to(chief)
    while True:
        signals.insist()
        # The program is looked at first: a worker that ends after it is no
        # failure.
        code = chief.process.returncode
        if _killed(code) and not chief.spent and not signals.passed_on:
            # Workers start again too: they hold what an earlier one left.
            if chief.revive("chief") and not chief.ended:
                for worker in workers.values():
                    worker.start()
            time.sleep(_POLL_S)
            continue
        ended = {name: w for name, w in workers.items() if w.ended}
        if code is None:
            ended = {
                name: worker
                for name, worker in ended.items()
                if not worker.revive(name)
                and not liveness.without(name, worker.how)
            }
        if code is None and not ended:
            time.sleep(_POLL_S)
            continue
        if code != 0:
            for name, worker in ended.items():
                if not liveness.knows(name):
                    click.echo(
                        f"{name} ended with {worker.how()} before the "
                        "program did; stopping everything.",
                        err=True,
                    )
        if code is None:
            _stop(chief.process)
            return 1
        chief.process.wait()
        return code if code >= 0 else 128 - code


def _stop(process: Process) -> None:
    process.signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)


def _killed(code: int | None) -> bool:
    """Whether a signal ended it, which ssh tells by large numbers."""
    return code is not None and (code < 0 or code > 128)
