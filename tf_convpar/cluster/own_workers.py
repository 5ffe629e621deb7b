"""Workers on this machine for this very program, as in a notebook.

`local_cluster` starts processes, for whatever chief. Here this process is
their chief, without `convpar launch` or a TF_CONFIG written by hand.
"""

from __future__ import annotations

import contextlib
import os
import sys

from tf_convpar.cluster import joining
from tf_convpar.cluster.local_cluster import local_workers as processes
from tf_convpar.cluster.local_cluster import wait_ready
from tf_convpar.cluster.process import how
from tf_convpar.cluster.server import READY
from tf_convpar.cluster.spec import Task
from tf_convpar.cluster.status import ask

_TF_CONFIG = "TF_CONFIG"
# Seconds in which a worker answers that is alive.
_ANSWER_S = 5.0


class LocalWorkers:
    """Workers on this machine, which `local_workers` starts.

    ```python
    workers = convpar.local_workers(2)
    print(workers)  # 2 local workers: worker 0 (process 4711), worker 1 ...
    workers.stop()
    ```

    As a context manager it stops them at the end.
    """

    def __init__(self, count: int, threads: int | None) -> None:
        if os.environ.get(_TF_CONFIG, "").strip():
            raise ValueError(
                "Expected a program that is in no cluster yet, to start local "
                "workers for it. Received TF_CONFIG="
                f"{os.environ[_TF_CONFIG]!r}. Under `convpar launch` there are "
                "workers already; otherwise unset TF_CONFIG."
            )
        self.made_by = (count, threads)
        self._stack = contextlib.ExitStack()
        self._stopping = False
        self._ready = set[Task]()
        self._local = self._stack.enter_context(
            processes(
                count,
                threads=threads,
                wait=False,
                on_line=self._show_line,
                on_end=self._show_end,
            )
        )

    def start(self, timeout_s: float = 60.0) -> None:
        """Starts the workers that do not run, and waits until all answer."""
        self._stopping = False
        members = joining.members()
        ended = [
            index
            for index, worker in enumerate(self._local.workers)
            if worker.returncode is not None
        ]
        tasks = [self._local.cluster.others[index] for index in ended]
        try:
            if members:
                members.leave(t for t in tasks if t not in members.absent)
            for index in ended:
                self._local.start_again(index)
            wait_ready(self._local.workers, timeout_s)
            if members:
                members.join(tasks)
        except BaseException:
            self.stop()
            raise
        os.environ[_TF_CONFIG] = self._local.tf_config()

    def stop(self) -> None:
        """Ends all of them. The program goes on alone, with its own devices.

        Models with kernels on the workers have lost them: `convpar.merge`
        them, or save them, before.
        """
        self._stopping = True
        if os.environ.get(_TF_CONFIG) == self._local.tf_config():
            del os.environ[_TF_CONFIG]
        try:
            self._leave()
        finally:
            self._local.kill()

    def _leave(self) -> None:
        """Removes the workers from the cluster, if it has been joined."""
        members = joining.members()
        if members is None:
            return
        tasks = self._local.cluster.others
        answers = ask(tasks, _ANSWER_S, patient=False)
        for task, worker in zip(tasks, self._local.workers, strict=True):
            if isinstance(answers[task], str):
                # One that hangs would be waited for.
                worker.kill()
        members.leave(t for t in tasks if t not in members.absent)

    def close(self) -> None:
        """Ends all of them, and gives their ports back."""
        self.stop()
        self._stack.close()

    def __enter__(self) -> LocalWorkers:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        count = len(self._local.workers)
        workers = "1 local worker" if count == 1 else f"{count} local workers"
        if self._stopping:
            return f"{workers}, stopped"
        states = (
            f"worker {index} ({_state(worker.pid, worker.returncode)})"
            for index, worker in enumerate(self._local.workers)
        )
        return f"{workers}: {', '.join(states)}"

    def _show_line(self, task: Task, line: str) -> None:
        # TensorFlow's start is of interest only where it fails, and then the
        # error has it.
        if line.startswith(READY):
            self._ready.add(task)
        elif task in self._ready:
            _show(task, line)

    def _show_end(self, task: Task, code: int) -> None:
        if task in self._ready and not self._stopping:
            _show(task, f"ended with {how(code)}")
        self._ready.discard(task)


_current: LocalWorkers | None = None


def local_workers(
    count: int, *, threads: int | None = None, timeout_s: float = 60.0
) -> LocalWorkers:
    """Starts workers on this machine; this program becomes their chief.

    ```python
    with convpar.local_workers(2):
        strategy = convpar.ConvParallelStrategy()
        print(strategy.devices)  # this program's, and those of two workers
    ```

    In a notebook it serves several cells without `with`:
    `workers = convpar.local_workers(2)` in the first, `workers.stop()` in the
    last. A cell that is run again changes nothing, unless workers ended
    meanwhile: these are started anew, for models that are made after that.

    Until they are stopped, `TF_CONFIG` in `os.environ` describes the cluster.
    So strategies find it, and so do commands such as `!convpar devices`. No
    worker outlives this process, however it ends, SIGKILL included. What a
    worker writes, and how it ended if it did so by itself, is shown on stderr:
    in a notebook, below the cell that runs.

    Args:
        count: Number of workers. This program's own devices compute too.
        threads: The most threads that one operation may use on a worker;
            None leaves it to TensorFlow, which takes one for each core.
        timeout_s: Seconds to wait until all workers answer.

    Returns:
        The workers, which run already.

    Raises:
        ValueError: `count` is not 1 or more, or this program has a cluster
            already, by its TF_CONFIG.
        RuntimeError: A worker could not start, and the message shows its
            output; or this program has joined other workers before.
        TimeoutError: A worker does not answer in time.
    """
    global _current
    if not isinstance(count, int) or count < 1:
        raise ValueError(
            "Expected `count` to be a number of workers, 1 or more. "
            f"Received: {count!r}."
        )
    if _current is not None and _current.made_by != (count, threads):
        if joining.members():
            raise RuntimeError(
                "Expected the same local workers as before, as a program joins "
                "one cluster in its life: count={}, threads={}. Received: "
                "count={}, threads={}. Restart the kernel, or the program, to "
                "use others.".format(*_current.made_by, count, threads)
            )
        _current.close()
        _current = None
    _current = _current or LocalWorkers(count, threads)
    _current.start(timeout_s)
    return _current


def _show(task: Task, text: str) -> None:
    print(f"[{task.job} {task.index}] {text}", file=sys.stderr, flush=True)


def _state(pid: int, code: int | None) -> str:
    return f"process {pid}" if code is None else f"ended with {how(code)}"
