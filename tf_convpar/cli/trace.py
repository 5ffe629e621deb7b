"""`convpar trace`."""

import pathlib

import click

from tf_convpar.cli._shared import as_json
from tf_convpar.cli._shared import messages_only
from tf_convpar.cli._shared import print_json


@click.command(name="trace")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.01, max=600),
    default=2.0,
    show_default=True,
    help="How long to record.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Training steps in the picture, the last ones.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=pathlib.Path, dir_okay=False),
    default="timeline",
    show_default=True,
    help="The files to write, without an ending.",
)
@as_json
def command(
    seconds: float, steps: int, output: pathlib.Path, as_json: bool
) -> None:
    """Record who computes, sends and waits in a training that runs now.

    \b
      convpar trace --seconds 5 --output here/timeline

    All tasks of the cluster in TF_CONFIG are asked over the network. Writes a
    picture, here/timeline.png, and here/timeline.json for ui.perfetto.dev.
    """  # noqa: D301 (click keeps the lines after a backspace as they are)
    from tf_convpar import timeline
    from tf_convpar.cluster import spec

    with messages_only():
        cluster = spec.resolve()
        if cluster is None:
            raise ValueError(
                "Expected TF_CONFIG to name the cluster that trains, as for "
                "its tasks. Received none."
            )
        recording = timeline.record(cluster.tasks, seconds)
        timeline.write(recording, output, steps=steps)
    files = [f"{output}.png", f"{output}.json"]
    if as_json:
        print_json({"spans": len(recording.spans), "files": files})
    else:
        count = len(recording.spans)
        click.echo(f"{count} operations: {files[0]} and {files[1]}.")
