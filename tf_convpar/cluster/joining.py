"""Joining a cluster: from TF_CONFIG to devices TensorFlow can use."""

import atexit
import contextlib
import errno
import os
import socket
import time

import psutil

from tf_convpar import machines
from tf_convpar.cluster import listening
from tf_convpar.cluster import slurm
from tf_convpar.cluster.members import Members as Members
from tf_convpar.cluster.spec import Cluster as Cluster
from tf_convpar.cluster.spec import Task as Task
from tf_convpar.cluster.spec import resolve as resolve
from tf_convpar.cluster.status import DeviceStatus as DeviceStatus
from tf_convpar.cluster.status import ask as ask
from tf_convpar.cluster.status import wait_for as wait_for

# Without the first option, TensorFlow sends what is meant for the other tasks
# to the proxy in $http_proxy and waits for ever. The other two turn a task that
# fell silent (machine off, cable out) into an UnavailableError after 80 to
# 90 s. By default TensorFlow waits for ever. Peers refuse more frequent pings.
GRPC_OPTIONS = (
    "grpc.enable_http_proxy=0,"
    "grpc.keepalive_time_ms=10000,"
    "grpc.keepalive_timeout_ms=5000"
)

# Operations that a task runs at a time, at least. With one, what others wait
# for would wait for the convolution that runs: on a task of one core a step of
# MobileNetV2 takes a quarter longer. Eight or sixteen make no difference.
_FEWEST_INTER_OP = 4

# Seconds for which a chief at least stays in its cluster, where workers end
# when it leaves: they must have seen it.
STAY_S = 2.0

_connected: Cluster | None = None
_members: Members | None = None


def connect(
    cluster: Cluster, timeout_s: float = 60.0, fewest: int | None = None
) -> None:
    """Makes this process the chief of a cluster whose workers are running.

    ```python
    cluster = resolve()
    if cluster is not None:
        connect(cluster)
    ```

    Every task's devices then appear in `tf.config.list_logical_devices()`.
    Variables made earlier are lost, as TensorFlow renames this process's own
    devices. So connect first (a `ConvParallelStrategy` does when it is made).
    Connecting to the same cluster again does nothing. `set_environment` says
    which environment variables are set.

    Args:
        cluster: the cluster; this process must be its chief.
        timeout_s: seconds to wait for the other tasks, all together.
        fewest: fewest other tasks to begin with; all if None. The rest are
            absent `members()`, which may join later.

    Raises:
        ValueError: where this process's task is not the chief, or there are
            fewer other tasks than `fewest`.
        RuntimeError: where it already is in another cluster, or where another
            `convpar launch` has started a worker.
        OSError: where its own port is taken or not permitted.
        TimeoutError: where a task does not answer in time.
    """
    global _connected, _members
    if not cluster.is_chief:
        raise ValueError(
            f"Expected this program to run on the chief, {cluster.chief}. "
            f"Received a TF_CONFIG that makes this process {cluster.task}: "
            "run `convpar worker` here, and the program on the chief alone."
        )
    others = cluster.others
    if fewest is not None and not 0 <= fewest <= len(others):
        raise ValueError(
            f"Expected min_workers from 0 to {len(others)}, the workers of "
            f"this cluster without its chief. Received: {fewest}."
        )
    if _connected == cluster:
        return
    if _connected is not None:
        raise RuntimeError(
            "Expected one cluster in the life of a process, as variables "
            "already live on its tasks. Connected to "
            f"{dict(_connected.spec)}. Received: {dict(cluster.spec)}. "
            "Restart the program to use another one."
        )
    set_environment()
    check_port_free(cluster.chief.address)
    doors = listening.wanted(cluster.chief)
    answered = wait_for(others, timeout_s, fewest, cluster.one_program)
    absent = [task for task in others if task not in answered]
    # The import takes seconds, for which no error above should have to wait.
    import tensorflow as tf

    from tf_convpar.cluster import error_hints

    # TensorFlow listens to everybody before it has found the workers, which
    # may take long: so it is alone at first.
    chief = cluster.chief
    tf.config.experimental_connect_to_cluster(
        tf.train.ClusterSpec({chief.job: {chief.index: chief.address}}),
        job_name=cluster.job,
        task_index=cluster.index,
        protocol="grpc",
    )
    # TensorFlow starts this task's server when it is first asked for devices.
    tf.config.list_logical_devices()
    listening.restrict(chief.port, doors)
    joined = Members(chief, answered, absent)
    joined.enter()
    error_hints.of_clusters()
    if cluster.one_program:
        atexit.register(_stay, until=time.monotonic() + STAY_S)
    _connected, _members = cluster, joined


def _stay(until: float) -> None:
    time.sleep(max(0.0, until - time.monotonic()))


def members() -> Members | None:
    """The members of the cluster whose chief this process is, if it is one."""
    return _members


def watched() -> contextlib.AbstractContextManager[None]:
    """Context in which calls to workers that hang fail soon."""
    return _members.watched() if _members else contextlib.nullcontext()


def step() -> contextlib.AbstractContextManager[None]:
    """Context of one step, by which a step that stands still is noticed."""
    return _members.steps.one() if _members else contextlib.nullcontext()


def set_environment() -> None:
    """Sets environment variables that TensorFlow reads when it first works.

    TF_GRPC_DEFAULT_OPTIONS becomes `GRPC_OPTIONS`. Streaming of requests is
    turned off: with it, the first call after a worker is lost would wait for
    ever instead of raising `UnavailableError`. TF_NUM_INTEROP_THREADS becomes
    the number of this machine's cores, at least four: each task has its own,
    where an option of the chief's would hold for all. What the user has set
    stays.
    """
    threads = max(_FEWEST_INTER_OP, len(machines.usable_cores()))
    for name, value in (
        ("TF_GRPC_DEFAULT_OPTIONS", GRPC_OPTIONS),
        ("TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE", "false"),
        ("TF_NUM_INTEROP_THREADS", str(threads)),
    ):
        os.environ.setdefault(name, value)


def check_port_free(address: str) -> None:
    """Raises an error if this process cannot have the port of its address.

    ```python
    check_port_free("localhost:2222")
    ```

    TensorFlow's own message is only `Could not start gRPC server`. It listens
    on every interface of the machine, so only the port matters.

    Args:
        address: `host:port` of this process's own task.

    Raises:
        OSError: where the port is taken, or needs rights this user lacks.
    """
    port = int(address.rpartition(":")[2])
    for family, anywhere in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # This machine has no IPv6.
        with listener:
            # gRPC sets it too: connections that just close do not matter.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((anywhere, port))
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    raise OSError(
                        error.errno, _port_problem(address, port, error.errno)
                    ) from None


def _port_problem(address: str, port: int, code: int) -> str:
    same = "the same in the TF_CONFIG of every task"
    if not os.environ.get("TF_CONFIG") and slurm.here(os.environ):
        same = slurm.CURE
    if code == errno.EACCES:
        return (
            f"Expected a port that this user may open for this task, at "
            f"{address}. Received {port}; choose one from 1024 to 65535, {same}"
        )
    return (
        f"Expected a free port for this task, at {address}. Received {port}, "
        f"which {_holder(port)} holds. End that (an earlier run?), or choose "
        f"another port for this task, {same}"
    )


def _holder(port: int) -> str:
    """Names the process that listens on a port, if this user may know it."""
    try:
        for connection in psutil.net_connections("tcp"):
            if (
                connection.status == psutil.CONN_LISTEN
                and connection.laddr.port == port
                and connection.pid
            ):
                process = psutil.Process(connection.pid)
                command = " ".join(process.cmdline())[:80]
                return f"process {connection.pid} ({command})"
    except (psutil.Error, OSError):
        pass
    return f"another process (`ss -ltnp 'sport = :{port}'` as root names it)"
