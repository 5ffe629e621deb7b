"""The server of a worker, by which the chief uses the worker's devices."""

import contextlib
import dataclasses
import os
import select
import signal
import socket
import sys
import threading
import time
from typing import NoReturn

from tf_convpar._compat.runtime import Runtime
from tf_convpar.cluster import listening
from tf_convpar.cluster import memory
from tf_convpar.cluster.joining import check_port_free
from tf_convpar.cluster.joining import set_environment
from tf_convpar.cluster.spec import Cluster
from tf_convpar.cluster.spec import Task
from tf_convpar.cluster.status import ask

# The start of the line that says a worker answers.
READY = "Ready: "

# Seconds without a heartbeat after which a worker ends, and between two.
HEARTBEATS_S, HEARTBEAT_EVERY_S = 15.0, 1.0

# Seconds between two looks whether a signal has come.
_LOOK_S = 0.2

# Seconds between two looks whether the chief's program runs, in a worker that
# runs the program too: before it is seen, and after. The chief stays for at
# least `joining.STAY_S`.
SOON_S, CHIEF_EVERY_S = 0.1, 1.0
# Seconds within which the chief has to be seen.
CHIEF_S = 600.0


def serve(
    cluster: Cluster,
    threads: int | None = None,
    listen: str | None = None,
    importing: contextlib.AbstractContextManager[None] | None = None,
) -> NoReturn:
    """Serves this machine's devices to the chief until told to stop.

    ```python
    serve(resolve(required=True))  # what `convpar worker` does
    # Ready: /job:worker/task:0 at b:2222 serves CPU:0, GPU:0
    ```

    It never returns. Where every task runs the chief's program, the process
    ends soon after the chief's, with exit code 0. SIGTERM ends it with exit
    code 0, and SIGINT with 130. Both do so at once, because a worker holds
    nothing that its chief cannot rebuild.

    Args:
        cluster: the cluster; this process must be one of its workers.
        threads: the most threads that one operation may use; `None` leaves the
            choice to TensorFlow, which takes one for each core.
        listen: the address of this machine at which others may reach it, as
            `listening.wanted` takes it.
        importing: entered while TensorFlow is imported, which writes a lot.

    Raises:
        ValueError: where this process's task is the chief.
        OSError: where its own port is taken or not permitted, or this machine
            has no such address.
        RuntimeError: where TensorFlow cannot start the server.
    """
    exit_on_signals()
    if cluster.is_chief:
        raise ValueError(
            "Expected this process to be a worker. Received a TF_CONFIG that "
            f"makes it the chief, {cluster.chief}: run the training program "
            "here, and `convpar worker` on the other machines."
        )
    check_port_free(cluster.task.address)
    doors = listening.wanted(cluster.task, listen)
    set_environment()
    # TensorFlow is imported late, so that errors come quickly. The ops must be
    # in the process before the server starts: the chief's functions name them.
    with importing or contextlib.nullcontext():
        runtime = Runtime()
        memory.keep()
        runtime.load_ops()
    from tensorflow.core.protobuf.config_pb2 import ConfigProto

    config = ConfigProto(intra_op_parallelism_threads=threads)
    try:
        server = runtime.server(
            cluster.spec,
            job_name=cluster.task.job,
            task_index=cluster.task.index,
            protocol="grpc",
            config=config,
            # It listens, and does not answer yet.
            start=False,
        )
        listening.restrict(cluster.task.port, doors)
        server.start()
    except runtime.Error as error:
        raise RuntimeError(
            f"TensorFlow could not start a server for {cluster.task}: "
            f"{error.message}"
        ) from None
    print(f"{READY}{cluster.task} serves {_devices(cluster.task)}", flush=True)
    if cluster.one_program:
        _end_with(cluster.chief)
    while True:
        # Why not `server.join()`: no signal handler of ours would run inside
        # it. Why not `signal.pause()`: a signal that the kernel gives to one of
        # TensorFlow's threads (if this one is stopped, say) does not end it.
        time.sleep(_LOOK_S)


def exit_without_heartbeats(silent_s: float = HEARTBEATS_S) -> None:
    """Ends this process once its standard input ends or is silent for long.

    A launch cannot end a worker on another machine when the connection to it is
    lost. So the launch writes to the worker every second.
    """
    fd = sys.stdin.fileno()

    def watch() -> None:
        while select.select([fd], [], [], silent_s)[0]:
            if not os.read(fd, 4096):
                break
        print("Whoever started this worker is gone; ending it.", flush=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _end_with(chief: Task) -> NoReturn:
    """Ends this process once nothing listens any more at the chief's port.

    srun waits for all tasks, and no other task would tell this one. A machine
    that is silent is waited for: Slurm ends the step if it is lost.
    """
    end = time.monotonic() + CHIEF_S
    seen, refused = False, 0
    while refused < 2:
        time.sleep(CHIEF_EVERY_S if seen else SOON_S)
        try:
            socket.create_connection((chief.host, chief.port), 5.0).close()
        except ConnectionRefusedError:
            refused += seen
        except OSError:
            refused = 0
        else:
            seen, refused = True, 0
        if not seen and time.monotonic() > end:
            print(
                f"Expected the chief, {chief}, within {CHIEF_S:g} s. Received "
                "no answer; ending this worker. Make the strategy early in the "
                "program, and run it by `srun --kill-on-bad-exit=1`.",
                flush=True,
            )
            os._exit(1)
    print(f"The program of {chief} has ended; ending this worker.", flush=True)
    os._exit(0)


def exit_on_signals() -> None:
    """Makes SIGTERM and SIGINT end this process at once, without a traceback.

    TensorFlow's server cannot be stopped in any other way.
    """
    for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        signal.signal(number, lambda *_, code=code: os._exit(code))


def _devices(task: Task) -> str:
    """The devices of this process; asking it proves that it answers."""
    here = dataclasses.replace(task, address=f"localhost:{task.port}")
    answer = ask([here], timeout_s=30.0)[here]
    if isinstance(answer, str):
        raise RuntimeError(
            f"TensorFlow started a server for {task}, but it does not answer "
            f"on this machine: {answer}."
        )
    return ", ".join(d.name.rpartition("/device:")[2] for d in answer)
