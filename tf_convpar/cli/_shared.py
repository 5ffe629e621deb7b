"""Options, errors and output that several sub-commands share."""

import contextlib
import glob
import json
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import click

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
patient = click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0.1),
    default=5.0,
    show_default=True,
    help="Seconds to wait for the other tasks, all together.",
)


class Mistake(click.ClickException):
    """An error that the user can correct, in a file or a variable."""

    exit_code = 2


class OutputFile(click.Path):
    """A file to write, whose folder is checked before work begins."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=pathlib.Path)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        path = pathlib.Path(os.fsdecode(super().convert(value, param, ctx)))
        parent = path.absolute().parent
        if not parent.is_dir():
            self.fail(
                f"Expected a file in a folder that exists. Received: {path}. "
                f"Make the folder first: mkdir -p {path.parent}.",
                param,
                ctx,
            )
        if not os.access(parent, os.W_OK):
            self.fail(
                f"Expected a folder that you may write to. Received: {path}.",
                param,
                ctx,
            )
        return path


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
        if isinstance(error, TimeoutError | ConnectionError | RuntimeError):
            raise click.ClickException(text) from error
        raise Mistake(text) from error


_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# Lines of TensorFlow's C++ from before it heeds that variable.
_CHATTER = re.compile(
    r"WARNING: All log messages before absl::InitializeLog\(\)"
    r"|[IW]0000 00:00:\d+\.\d+ +\d+ \w+\.cc:\d+\]"
)
# A build with CUDA says so on every machine without a GPU.
_NO_GPU = re.compile(r"E0000 .*failed call to cuInit")
_quiet = False


def quieten() -> None:
    """Lets TensorFlow write errors only, here and in child processes.

    Nothing is changed where the user has set TF_CPP_MIN_LOG_LEVEL, which says
    that somebody looks for what it writes.
    """
    global _quiet
    _quiet = _quiet or _LEVEL not in os.environ
    if _quiet:
        os.environ.setdefault(_LEVEL, "2")


def is_chatter(line: str) -> bool:
    """Whether a line of stderr is what TensorFlow writes while it starts."""
    if not _quiet:
        return False
    no_gpu = _NO_GPU.match(line) and not glob.glob("/dev/nvidia[0-9]*")
    return bool(_CHATTER.match(line) or no_gpu)


@contextlib.contextmanager
def without_chatter() -> Iterator[None]:
    """Keeps off the terminal what TensorFlow writes while it starts.

    That text comes from C++, before TF_CPP_MIN_LOG_LEVEL is heeded. It is shown
    where the user has set that variable, and where the start fails.
    """
    if not _quiet:
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
