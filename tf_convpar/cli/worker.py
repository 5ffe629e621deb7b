"""`convpar worker`."""

import click

from tf_convpar.cli._shared import messages_only
from tf_convpar.cli._shared import without_chatter


@click.command(name="worker")
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Most threads for one operation; one for each core by default.",
)
@click.option(
    "--listen",
    metavar="ADDRESS",
    envvar="CONVPAR_LISTEN",
    show_envvar=True,
    help="The address of this machine at which others may reach the worker; "
    "0.0.0.0 for all. By default all, but for tasks at localhost.",
)
@click.option(
    "--heartbeats",
    is_flag=True,
    help="End when standard input ends, or is silent for 15 s: then whoever "
    "started this worker is gone. `convpar launch --ssh` writes to it.",
)
def command(threads: int | None, listen: str | None, heartbeats: bool) -> None:
    """Serve this machine's devices to the chief.

    \b
      convpar worker --threads 2

    Reads TF_CONFIG, e.g.

    \b
      {"cluster": {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"]},
       "task": {"type": "worker", "index": 0}}

    and serves until SIGTERM (exit code 0) or Ctrl-C (130). Anyone who can
    reach the port can run operations on this machine: keep it within a
    trusted network. Who is at localhost is reached from this machine only.
    """  # noqa: D301 (click keeps the lines after a backspace as they are)
    from tf_convpar.cluster import server
    from tf_convpar.cluster import spec

    server.exit_on_signals()
    if heartbeats:
        server.exit_without_heartbeats()
    with messages_only():
        cluster = spec.resolve(required=True)
        server.serve(cluster, threads, listen, without_chatter())
