"""The `convpar` program."""

import importlib
import os
import pkgutil
import signal
import sys
from collections.abc import Sequence
from typing import Any

import click

from tf_convpar import __version__
from tf_convpar import cli
from tf_convpar.cli._shared import quieten


class _Commands(click.Group):
    """A group in which every other module of this package is a sub-command.

    `check_build.py` is `convpar check-build`, and its click command is the
    module's `command`. Modules that begin with `_` are not commands. A module
    is imported when it is used or listed, so none may import TensorFlow at its
    top: `convpar --help` must not take seconds.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(
            module.name.replace("_", "-")
            for module in pkgutil.iter_modules(cli.__path__)
            if module.name != "main" and not module.name.startswith("_")
        )

    def get_command(
        self, ctx: click.Context, cmd_name: str
    ) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        name = f"{cli.__name__}.{cmd_name.replace('-', '_')}"
        return importlib.import_module(name).command

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        *,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Runs a command; a mistake in how it was called is told in a line.

        Click would print how the command is used before what is wrong.
        """
        quieten()
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **extra)
        try:
            code = super().main(args, standalone_mode=False, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(error.exit_code)
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx else "convpar"
            click.echo(
                f"Error: {error.format_message()} See: {path} --help", err=True
            )
            sys.exit(error.exit_code)
        except click.ClickException as error:
            error.show()
            sys.exit(error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            click.echo("Stopped.", err=True)
            sys.exit(128 + signal.SIGINT)
        except BrokenPipeError:
            # The reader has gone, as in `convpar env | head`. Nothing is left
            # to be flushed at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)


@click.group(
    name="convpar",
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="convpar")
def main() -> None:
    """Train Keras CNNs across unequal machines.

    \b
      convpar launch -n 3 train.py

    The chief machine runs your training program, every other machine runs
    `convpar worker`; TF_CONFIG tells each who it is. `convpar launch` starts
    all of them for you.
    """  # noqa: D301 (click keeps the lines after a backspace as they are)
