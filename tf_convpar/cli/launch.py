"""`convpar launch`."""

import functools
import os
import pathlib
import shlex
import sys
import tempfile

import click

from tf_convpar.cli import _tunnel
from tf_convpar.cli._shared import as_json
from tf_convpar.cli._shared import messages_only
from tf_convpar.cli._shared import print_json
from tf_convpar.cluster.spec import Cluster
from tf_convpar.cluster.spec import Task


@click.command(
    name="launch",
    # Everything after the program's name belongs to the program.
    context_settings={
        "allow_interspersed_args": False,
        "ignore_unknown_options": False,
    },
)
@click.option(
    "-n",
    "tasks",
    type=click.IntRange(min=1),
    help="Run this many tasks on this machine, the chief among them: 3 are the "
    "chief and two workers.",
)
@click.option(
    "--hosts",
    metavar="HOST:PORT,...",
    help="Run one task on each of these machines, the chief on the first.",
)
@click.option(
    "--ssh", is_flag=True, help="With --hosts: start them over ssh, now."
)
@click.option(
    "--tunnel",
    is_flag=True,
    help="With --ssh: no task opens a port to the network; what they send one "
    "another goes through ssh and this machine.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="With --hosts: print the commands (done without --ssh anyway).",
)
@click.option(
    "--python",
    default="python3",
    show_default=True,
    help="With --hosts: the interpreter on those machines.",
)
@click.option("--cwd", help="With --hosts: the directory to start in, there.")
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Most threads for one operation, on each worker.",
)
@click.option(
    "--restarts",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How often to start each task again that ended early.",
)
@click.option(
    "-m", "module", is_flag=True, help="PROGRAM is a module, as in python -m."
)
@as_json
@click.argument("program")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(
    tasks: int | None,
    hosts: str | None,
    ssh: bool,
    tunnel: bool,
    dry_run: bool,
    python: str,
    cwd: str | None,
    threads: int | None,
    restarts: int,
    module: bool,
    as_json: bool,
    program: str,
    args: tuple[str, ...],
) -> None:
    """Start workers, and PROGRAM with its ARGS as their chief.

    \b
      convpar launch -n 3 train.py --epochs 5
      convpar launch -n 3 -m mypackage.train
      convpar launch --hosts a:2222,b:2222 train.py
      convpar launch --hosts a:2222,b:2222 --ssh --cwd work train.py
      convpar launch --hosts a:2222,b:2223 --ssh --tunnel train.py

    Every line of output gets its task's name in front; stdout and stderr stay
    apart. Ctrl-C and SIGTERM reach PROGRAM, and its exit code becomes that of
    this command. A second Ctrl-C reaches it too, and then it is killed after
    10 s, or by a third one at once. When this command ends, in whatever way,
    everything ends; so it does when a worker ends early, unless PROGRAM goes on
    without it (callbacks.Elastic, replicas). With --restarts the worker is
    started again, after 1 s, then 2 s, 4 s and so on. PROGRAM itself is started
    again, with all workers, if a signal killed it. A worker that answers nobody
    is killed.

    With --hosts, the command for each machine is printed, or run with --ssh.
    All machines need this package, PROGRAM, and access to each other's ports;
    with --tunnel, ssh from here to each of them is enough.
    """  # noqa: D301 (click keeps the lines after a backspace as they are)
    _check_options(tasks, hosts, ssh, tunnel, dry_run, as_json, cwd)
    if hosts is None and not module and not pathlib.Path(program).is_file():
        raise click.UsageError(
            f"Expected PROGRAM to be a file. Received: {program}, which is not "
            "there; a module is run with -m."
        )
    from tf_convpar.cluster import launches

    line = [*(["-m"] if module else []), program, *args]
    launch = launches.new()
    if hosts is None:
        sys.exit(_run_here(tasks or 1, line, threads, restarts, launch))
    # Whoever runs the printed commands by hand has no heartbeat, and may run
    # one of them again.
    runs_now = ssh and not dry_run
    cluster, machines = _cluster(hosts, tunnel)
    workers, commands = _remote(
        *(cluster, machines, [python, *line], python, cwd, threads),
        launch if runs_now else None,
    )
    if runs_now:
        asks = [python, "-m", "tf_convpar_cli", "top", "--last-step", launch]
        last_step = _in_folder(cwd, shlex.join(asks))
        sys.exit(
            _run_there(commands, workers, cluster, restarts, last_step, tunnel)
        )
    if as_json:
        print_json(
            [
                {"task": task, "host": host, "command": text}
                for task, host, text in commands
            ]
        )
        return
    for task, host, text in commands:
        click.echo(f"# {task}, on {host}:\n{text}\n")


def _check_options(
    tasks: int | None,
    hosts: str | None,
    ssh: bool,
    tunnel: bool,
    dry_run: bool,
    as_json: bool,
    cwd: str | None,
) -> None:
    if (tasks is None) == (hosts is None):
        raise click.UsageError("Expected either -n or --hosts.")
    if hosts is None and (ssh or dry_run or as_json or cwd):
        raise click.UsageError(
            "Expected --ssh, --dry-run, --json and --cwd with --hosts only."
        )
    if tunnel and (dry_run or not ssh):
        raise click.UsageError(
            "Expected --tunnel with --ssh, and without --dry-run: the tunnel "
            "lasts as long as this command."
        )


def _run_here(
    tasks: int, line: list[str], threads: int | None, restarts: int, launch: str
) -> int:
    """Runs a Python program as the chief of a launch on this machine."""
    from tf_convpar import files
    from tf_convpar.cli import _supervise
    from tf_convpar.cluster import launches

    os.environ[launches.VARIABLE] = launch
    last_step = functools.partial(files.last_step, launch)
    program = [sys.executable, *line]
    return _supervise.local(tasks, program, threads, restarts, last_step)


def _run_there(
    commands: list[tuple[str, str, str]],
    workers: dict[str, Task],
    cluster: Cluster,
    restarts: int,
    last_step: str,
    tunnel: bool,
) -> int:
    """Runs the commands of all tasks over ssh, which may join them too."""
    from tf_convpar.cli import _supervise

    if not tunnel:
        return _supervise.over_ssh(
            commands, workers, restarts, last_step=last_step
        )
    with tempfile.TemporaryDirectory(prefix="convpar-") as folder:
        forwards = {
            name: _tunnel.options(task, cluster.tasks, folder)
            for name, task in (*workers.items(), ("chief", cluster.chief))
        }
        at_sockets = {n: _tunnel.here(t, folder) for n, t in workers.items()}
        return _supervise.over_ssh(
            commands, at_sockets, restarts, forwards, last_step
        )


def _cluster(hosts: str, tunnel: bool) -> tuple[Cluster, dict[Task, str]]:
    """The tasks, the chief first, and the machine of each."""
    addresses = [address.strip() for address in hosts.split(",")]
    with messages_only():
        reachable = _tunnel.at_localhost(addresses) if tunnel else addresses
        chief, *rest = reachable
        spec = {"chief": (chief,)} | ({"worker": tuple(rest)} if rest else {})
        cluster = Cluster(spec)
    machines = [a.rpartition(":")[0].strip("[]") for a in addresses]
    return cluster, dict(zip(cluster.tasks, machines, strict=True))


def _in_folder(folder: str | None, text: str) -> str:
    return text if folder is None else f"cd {shlex.quote(folder)} && {text}"


def _remote(
    cluster: Cluster,
    machines: dict[Task, str],
    program: list[str],
    python: str,
    cwd: str | None,
    threads: int | None,
    launch: str | None,
) -> tuple[dict[str, Task], list[tuple[str, str, str]]]:
    """Workers by name; and name, host and command of each, the chief's last.

    Tasks of a `launch` that lasts have its id, and its heartbeats.
    """
    from tf_convpar.cli._supervise import NUMBER
    from tf_convpar.cluster import launches

    worker = [python, "-m", "tf_convpar_cli", "worker"]
    if launch:
        worker.append("--heartbeats")
    if threads is not None:
        worker.append(f"--threads={threads}")
    commands, workers = [], {}
    for task in (*cluster.others, cluster.chief):
        words = program if task == cluster.chief else worker
        # By `env`: not every shell takes values before a command.
        text = f"env TF_CONFIG={shlex.quote(cluster.tf_config(task))} "
        if launch:
            text += f"{launches.VARIABLE}={launch} "
        text += shlex.join(words)
        if launch and task == cluster.chief:
            text = f"echo {NUMBER} $$ && exec {text}"
        text = _in_folder(cwd, text)
        name = "chief" if task == cluster.chief else f"worker {task.index}"
        commands.append((name, machines[task], text))
        if task != cluster.chief:
            workers[name] = task
    return workers, commands
