"""What several sub-commands need."""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import click

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def print_json(value: Any) -> None:
    """Prints plain data as indented JSON."""
    click.echo(json.dumps(value, indent=2))


@contextlib.contextmanager
def messages_only() -> Iterator[None]:
    """Turns errors meant for the user into `Error: ...`.

    The exit code is 2 for what a person has to write otherwise: options, files,
    TF_CONFIG. It is 1 for what fails on the way, such as a task that does not
    answer. Put it around the calls that raise such errors, and around no more:
    anything else that fails is a bug, and its traceback is wanted.
    """
    try:
        yield
    except (ValueError, OSError, RuntimeError) as error:
        text = getattr(error, "strerror", None) or str(error)
        problem = click.ClickException(text)
        passing = (TimeoutError, ConnectionError, RuntimeError)
        problem.exit_code = 1 if isinstance(error, passing) else 2
        raise problem from error


@contextlib.contextmanager
def without_chatter() -> Iterator[None]:
    """Keeps off the terminal what TensorFlow writes while it starts.

    That text comes from C++, before TF_CPP_MIN_LOG_LEVEL is heeded. It is shown
    where that variable is set, which says that somebody looks for it, and
    where the start fails.
    """
    if "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        yield
        return
    with tempfile.TemporaryFile() as kept:
        stderr = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except BaseException:
            kept.seek(0)
            os.write(stderr, kept.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
