"""Workers as processes of this machine, none of which outlives this one."""

import contextlib
import dataclasses
import functools
import os
import socket
import sys
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from pathlib import Path

from tf_convpar.cluster.process import Process
from tf_convpar.cluster.process import how
from tf_convpar.cluster.server import READY
from tf_convpar.cluster.spec import Cluster
from tf_convpar.cluster.spec import Task


@dataclasses.dataclass
class LocalCluster:
    """A cluster of processes on this machine, which `local_workers` yields.

    Attributes:
        cluster: the cluster, as its chief sees it.
        workers: the process of each worker.
    """

    cluster: Cluster
    workers: list[Process]
    _start: Callable[[int], Process]

    def tf_config(self) -> str:
        """The chief's TF_CONFIG, as JSON."""
        return self.cluster.tf_config()

    def env(self) -> dict[str, str]:
        """This process's environment with the chief's TF_CONFIG."""
        return {**os.environ, "TF_CONFIG": self.tf_config()}

    def kill(self) -> None:
        """Kills every worker, and waits for their end."""
        for worker in self.workers:
            worker.kill()

    def restart(self, index: int, timeout_s: float = 60.0) -> None:
        """Kills a worker and starts another in its place, at its address."""
        wait_ready([self.start_again(index)], timeout_s)

    def start_again(self, index: int) -> Process:
        """Restarts a worker without waiting until it answers."""
        self.workers[index].kill()
        self.workers[index] = self._start(index)
        return self.workers[index]


@contextlib.contextmanager
def local_workers(
    count: int,
    *,
    threads: int | None = None,
    timeout_s: float = 60.0,
    wait: bool = True,
    on_line: Callable[[Task, str], None] | None = None,
    on_end: Callable[[Task, int], None] | None = None,
    on_error_line: Callable[[Task, str], None] | None = None,
) -> Iterator[LocalCluster]:
    """Runs workers on this machine for as long as the context lasts.

    ```python
    with local_workers(2) as local:
        subprocess.run([sys.executable, "train.py"], env=local.env())
    ```

    Every port, also the chief's, stays reserved until the context ends, so no
    other program is given one of them before it is used. No worker outlives
    the context or this process, however either ends.

    Args:
        count: number of workers; the chief is not counted.
        threads: the most threads that one operation may use on a worker, as
            for `convpar worker --threads`; None leaves it to TensorFlow.
        timeout_s: seconds to wait until all workers answer.
        wait: whether to wait until all workers answer.
        on_line: function that is called with a worker's task and each line of
            its output, from a thread for each worker.
        on_end: function that the same thread calls with the task and its exit
            code, however it ended.
        on_error_line: the same as `on_line` for stderr alone, as for `Process`.

    Yields:
        The cluster, its workers, and the TF_CONFIG of its chief.

    Raises:
        ValueError: where `count` is negative.
        RuntimeError: where a worker ended. The message shows its output.
        TimeoutError: where a worker does not answer in time. The message shows
            its output.
    """
    if count < 0:
        raise ValueError(f"Expected count of 0 or more. Received: {count}")
    with contextlib.ExitStack() as stack:
        chief, *rest = (
            f"localhost:{stack.enter_context(reserved_port())}"
            for _ in range(count + 1)
        )
        spec = {"chief": (chief,)} | ({"worker": tuple(rest)} if rest else {})
        cluster = Cluster(spec)

        def start(index: int) -> Process:
            task = cluster.others[index]
            command = [sys.executable, "-m", "tf_convpar_cli", "worker"]
            if threads is not None:
                command.append(f"--threads={threads}")
            return Process(
                command,
                env={**_env(), "TF_CONFIG": cluster.tf_config(task)},
                on_line=on_line and functools.partial(on_line, task),
                on_end=on_end and functools.partial(on_end, task),
                on_error_line=on_error_line
                and functools.partial(on_error_line, task),
            )

        local = LocalCluster(cluster, [], start)
        # Registered first: if a worker fails to start, it ends those that did.
        stack.callback(local.kill)
        for index in range(count):
            local.workers.append(start(index))
        if wait:
            wait_ready(local.workers, timeout_s)
        yield local


def wait_ready(workers: Sequence[Process], timeout_s: float) -> None:
    """Waits until every worker has said that it answers.

    Raises:
        RuntimeError: where a worker ended instead.
        TimeoutError: where a worker takes longer than `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    for index, worker in enumerate(workers):
        while not any(
            line.startswith(READY) for line in worker.output.splitlines()
        ):
            if worker.returncode is not None:
                ending = how(worker.wait())
                raise RuntimeError(
                    "Expected every local worker to start. Received "
                    f"{ending} from worker {index}, which wrote:\n"
                    f"{worker.output}"
                )
            if time.monotonic() > deadline:
                raise TimeoutError(
                    "Expected every local worker to answer within "
                    f"{timeout_s:g} s. Received nothing from worker {index}, "
                    f"which wrote:\n{worker.output}"
                )
            time.sleep(0.05)


def _env() -> dict[str, str]:
    """An environment in which a child imports this package from here too."""
    root = str(Path(__file__).parents[2])
    path = os.environ.get("PYTHONPATH", "")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (path, root))),
    }


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Yields a free port that the system gives to no other program.

    Linux lets several sockets be bound to one port if all of them ask for
    SO_REUSEADDR, as gRPC's does, and one of them listens. When asked for any
    free port, it gives none that is bound. So the socket of this function
    stays bound, and never listens.
    """
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        port = holder.getsockname()[1]
        if sys.platform != "linux":
            holder.close()  # Other systems refuse the second bind.
        yield port
