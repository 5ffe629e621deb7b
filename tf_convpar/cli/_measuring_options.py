"""Options and progress bar of the commands that measure."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from collections.abc import Iterator
from typing import TYPE_CHECKING
from typing import Any

import click

from tf_convpar.cli import _models
from tf_convpar.cli._shared import OutputFile
from tf_convpar.cli._shared import messages_only
from tf_convpar.cli._shared import without_chatter

if TYPE_CHECKING:
    from tf_convpar.strategy.strategy import ConvParallelStrategy

batch = click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="Images in a step.",
)
threads = click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Threads of one operation here; one for each core by default.",
)
output = click.option(
    "--output",
    type=OutputFile(),
    help="Where to write the calibration, for `convpar plan`.",
)


def set_threads(threads: int | None) -> None:
    """Sets the threads of one operation here, before TensorFlow starts any."""
    with without_chatter():
        import tensorflow as tf

    if threads is not None:
        tf.config.threading.set_intra_op_parallelism_threads(threads)


def cluster_and_model(
    model: str,
    image: int | None,
    wire_dtype: str | None,
    threads: int | None,
) -> tuple[ConvParallelStrategy, Any]:
    """The strategy of the cluster in `TF_CONFIG`, and the model named.

    The model of a file comes with its optimizer and loss.
    """
    set_threads(threads)
    with without_chatter(), messages_only():
        from tf_convpar.strategy.strategy import ConvParallelStrategy

        # The cluster comes first: variables made before would be lost.
        strategy = ConvParallelStrategy(wire_dtype=wire_dtype)
    return strategy, _models.load(model, image, compiled=True)


@contextlib.contextmanager
def progress(
    doing: str = "Measuring, which takes up to a minute the first time",
) -> Iterator[Callable[[str], None]]:
    """Shows on stderr what is being measured, and warnings at the end.

    Yields a function that shows a few words beside the bar.
    """
    from rich.console import Console

    with without_chatter():
        from tf_convpar.planner.measure import progress as shown

    console = Console(stderr=True)

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with shown(doing, say) as report:
            yield report
    for warning in caught:
        if issubclass(warning.category, RuntimeWarning | UserWarning):
            console.print(f"Warning: {warning.message}", style="yellow")
