"""Asks tasks whether they answer and what devices they have."""

import contextlib
import dataclasses
import logging
import socket
import threading
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message_factory
from google.protobuf.message import DecodeError

from tf_convpar.cluster.spec import Task

_LOG = logging.getLogger("tf_convpar")
_METHOD = "/tensorflow.WorkerService/GetStatus"
# Seconds of silence after which it is told which tasks are waited for.
_PATIENCE_S = 5.0
# Seconds in which a running machine accepts a connection, or refuses it.
_REASON_S = 1.0


@dataclasses.dataclass(frozen=True)
class DeviceStatus:
    """A device as its task describes it.

    Attributes:
        name: full TensorFlow name, `/job:worker/replica:0/task:0/device:CPU:0`.
        type: device type, such as `"CPU"` or `"GPU"`.
        memory_bytes: bytes that TensorFlow may allocate there; TensorFlow
            reports 256 MiB for any CPU.
        description: the model of a GPU; empty for a CPU.
        incarnation: number that tells the process from another one at the same
            address.
    """

    name: str
    type: str
    memory_bytes: int
    description: str
    incarnation: int = 0


def ask(
    tasks: Iterable[Task],
    timeout_s: float,
    patient: bool = True,
    channels: dict[Task, grpc.Channel] | None = None,
) -> dict[Task, tuple[DeviceStatus, ...] | str]:
    """Asks every task, at the same time, for its devices.

    ```python
    ask([Task("worker", 0, "b:2222")], timeout_s=3.0)
    # {Task(...): (DeviceStatus("/job:worker/replica:0/.../CPU:0", ...),)}
    ```

    A TCP connection proves little: a stopped process, or another program on
    that port, accepts it too. So each task gets the call that TensorFlow's own
    master makes first. It is repeated while there is time.

    Args:
        tasks: the tasks to ask.
        timeout_s: seconds to wait for them, all together.
        patient: whether to wait for tasks where nothing listens yet.
        channels: connections of earlier questions; afterwards those to the
            tasks that answered. `None` makes new ones, and closes them.

    Returns:
        For each task its devices or, as text, the reason for no answer.
    """
    with _Calls(tasks, timeout_s, patient, channels) as calls:
        return calls.answers()


def wait_for(
    tasks: Iterable[Task],
    timeout_s: float,
    fewest: int | None = None,
    one_program: bool = False,
) -> dict[Task, tuple[DeviceStatus, ...]]:
    """Waits until every task answers, or enough of them in the end.

    ```python
    wait_for(cluster.others, timeout_s=60.0)
    ```

    Args:
        tasks: the tasks to wait for.
        timeout_s: seconds to wait for them, all together.
        fewest: number of tasks that must have answered by then; all if None.
        one_program: whether they run this program, not `convpar worker`.

    Returns:
        The devices of each task that has answered.

    Raises:
        TimeoutError: where a task has not answered in time, or another one
            answered at its address. The message names each, with the reason
            and the cure.
    """
    with _Calls(tasks, timeout_s) as calls:
        late = calls.pending(min(_PATIENCE_S, timeout_s))
        if late and timeout_s > _PATIENCE_S:
            _LOG.warning(
                "Waiting up to %.0f s for %s. Is %s running there?",
                timeout_s,
                ", ".join(map(str, late)),
                "this program" if one_program else "`convpar worker`",
            )
        answers = calls.answers()
    silent = {t: why for t, why in answers.items() if isinstance(why, str)}
    answered = len(answers) - len(silent)
    if answered < (len(answers) if fewest is None else fewest):
        raise TimeoutError(_unreachable(silent, timeout_s, fewest, one_program))
    if silent:
        _LOG.warning(
            "%d of %d other tasks have answered within %g s; going on without "
            "%s.",
            answered,
            len(answers),
            timeout_s,
            ", ".join(map(str, silent)),
        )
    return {t: d for t, d in answers.items() if not isinstance(d, str)}


def _unreachable(
    silent: dict[Task, str],
    timeout_s: float,
    fewest: int | None,
    one_program: bool,
) -> str:
    most = "every other task" if fewest is None else f"{fewest} other tasks"
    lines = [
        f"Expected {most} to answer within {timeout_s:g} s. "
        f"Received no answer from {len(silent)}:"
    ]
    lines += [f"  {task}: {why}." for task, why in silent.items()]
    task = next(iter(silent))
    cure = (
        "Run `convpar worker` on each of these machines, with the TF_CONFIG "
        'of this task but its own "task", e.g. '
        f'{{"type": "{task.job}", "index": {task.index}}}.'
    )
    if one_program:
        cure = (
            "Each task of this step runs the program up to its "
            "ConvParallelStrategy, and serves there: make the strategy early, "
            "or give it a longer connect_timeout=."
        )
    lines.append(
        f"{cure} A firewall between the machines must let every task reach "
        "every other one's port."
    )
    return "\n".join(lines)


class _Calls:
    """One status call to each task, in flight at the same time."""

    def __init__(
        self,
        tasks: Iterable[Task],
        timeout_s: float,
        patient: bool = True,
        channels: dict[Task, grpc.Channel] | None = None,
    ) -> None:
        self._deadline = time.monotonic() + timeout_s
        self._opened: dict[Task, grpc.Channel] = {}
        self._channels = self._opened if channels is None else channels
        self._calls = {}
        for task in tasks:
            if task not in self._channels:
                self._channels[task] = channel_to(task)
            call = self._channels[task].unary_unary(_METHOD)
            self._calls[task] = call.future(
                b"", timeout=timeout_s, wait_for_ready=patient
            )

    def __enter__(self) -> "_Calls":
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._opened.values():
            channel.close()

    def pending(self, patience_s: float) -> list[Task]:
        """Returns the tasks that have not answered after `patience_s`."""
        late = self._unanswered(time.monotonic() + patience_s)
        return [task for task in late if not self._calls[task].done()]

    def answers(self) -> dict[Task, tuple[DeviceStatus, ...] | str]:
        """Returns the answer of each task, at the deadline at the latest."""
        # In time to know them when time is up.
        reasons = _Reasons(self._unanswered(self._deadline - _REASON_S))
        answers = {}
        for task, call in self._calls.items():
            # The call has its own deadline; the added second is for delivery.
            left = max(0.0, self._deadline - time.monotonic()) + 1.0
            try:
                answers[task] = _devices(task, call.result(timeout=left))
            except grpc.FutureTimeoutError:
                answers[task] = reasons.of(task)
            except grpc.RpcError as error:
                answers[task] = reasons.of(task, error.code())
                if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                    continue  # Slow, but its connection is a good one.
            if isinstance(answers[task], str):
                # It would wait before it connects again.
                self._channels.pop(task).close()
        return answers

    def _unanswered(self, until: float) -> list[Task]:
        """Tasks that have not answered by then, or whose call has failed."""
        tasks = []
        for task, call in self._calls.items():
            try:
                call.result(timeout=max(0.0, until - time.monotonic()))
            except (grpc.FutureTimeoutError, grpc.RpcError):
                tasks.append(task)
        return tasks


def channel_to(task: Task) -> grpc.Channel:
    """A connection to a task, tried again soon where it is not there."""
    return grpc.insecure_channel(
        task.address,
        options=[
            ("grpc.enable_http_proxy", 0),
            # Workers usually start later than the chief. So try again soon,
            # and do not let a silent listener hold up a try for long.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 2000),
            ("grpc.max_reconnect_backoff_ms", 1000),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", -1),
        ],
    )


@contextlib.contextmanager
def connecting(tasks: Iterable[Task]) -> Iterator[Callable[[], set[Task]]]:
    """Opens a new connection to each task meanwhile.

    ```python
    with connecting(silent) as accepting:
        ask(silent, timeout_s=2.5)
        busy = accepting()  # those of them that run, and do not answer
    ```

    gRPC's own threads accept it; TensorFlow's answer calls. Those of a process
    that is stopped, or cut off, do neither.

    Args:
        tasks: The tasks to connect to.

    Yields:
        A function that returns the tasks that have accepted.
    """
    channels = {task: channel_to(task) for task in tasks}
    ready = {t: grpc.channel_ready_future(c) for t, c in channels.items()}
    try:
        yield lambda: {task for task, future in ready.items() if future.done()}
    finally:
        for task, channel in channels.items():
            ready[task].cancel()
            channel.close()


class _Reasons:
    """Reasons why tasks do not answer, looked for all at the same time."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        # Some more for names, which may be asked of a server that is silent.
        self._deadline = time.monotonic() + 1.5 * _REASON_S
        self._reasons: dict[Task, str] = {}
        self._threads = {
            task: threading.Thread(target=self._look, args=(task,), daemon=True)
            for task in tasks
        }
        for thread in self._threads.values():
            thread.start()

    def of(self, task: Task, code: grpc.StatusCode | None = None) -> str:
        """The reason, in words that a person can act on.

        Args:
            task: One of those tasks.
            code: What gRPC says.
        """
        if code == grpc.StatusCode.UNIMPLEMENTED:
            return "a server that is not TensorFlow's answers there"
        self._threads[task].join(max(0.0, self._deadline - time.monotonic()))
        return self._reasons.get(
            task,
            f"no reply from that machine, nor about its name, {task.host!r}",
        )

    def _look(self, task: Task) -> None:
        self._reasons[task] = _reason(task)


def _reason(task: Task) -> str:
    if task.address.startswith("unix:"):
        return "no answer through the tunnel to it"
    host = task.host
    try:
        with socket.create_connection((host, task.port), timeout=_REASON_S):
            return (
                "something listens there but does not answer: another "
                "program on that port, or a stopped worker"
            )
    except (socket.gaierror, UnicodeError):
        return f"the host name {host!r} is not known here"
    except ConnectionRefusedError:
        return "connection refused, so nothing listens there"
    except TimeoutError:
        return "no reply from that machine: off, or behind a firewall"
    except OSError as problem:
        return problem.strerror or str(problem)


def _devices(task: Task, reply: bytes) -> tuple[DeviceStatus, ...] | str:
    try:
        status = _STATUS.FromString(reply)
    except DecodeError:
        status = _STATUS()
    # TensorFlow has one device at least.
    if not status.device_attributes:
        return "something that is not TensorFlow answers there"
    devices = tuple(
        DeviceStatus(
            d.name,
            d.device_type,
            d.memory_limit,
            d.physical_device_desc,
            d.incarnation,
        )
        for d in status.device_attributes
    )
    prefix = f"/job:{task.job}/replica:0/task:{task.index}/"
    strangers = [d.name for d in devices if not d.name.startswith(prefix)]
    if strangers:
        name = strangers[0].partition("/device:")[0].replace("/replica:0", "")
        return f"{name} answers there, so its TF_CONFIG differs from ours"
    return devices


def _status_message() -> Any:
    """Builds the part of tensorflow.GetStatusResponse that is read here.

    TensorFlow's wheel has no generated code for it, and importing the wheel
    takes seconds that `convpar launch` need not spend. Field numbers are those
    of tensorflow/core/protobuf/worker.proto and
    tensorflow/core/framework/device_attributes.proto.
    """
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="tf_convpar/status.proto", package="tf_convpar", syntax="proto3"
    )
    device = file.message_type.add(name="DeviceAttributes")
    for name, number, kind in (
        ("name", 1, field.TYPE_STRING),
        ("device_type", 2, field.TYPE_STRING),
        ("memory_limit", 4, field.TYPE_INT64),
        ("incarnation", 6, field.TYPE_FIXED64),
        ("physical_device_desc", 7, field.TYPE_STRING),
    ):
        device.field.add(
            name=name, number=number, type=kind, label=field.LABEL_OPTIONAL
        )
    file.message_type.add(name="GetStatusResponse").field.add(
        name="device_attributes",
        number=1,
        type=field.TYPE_MESSAGE,
        type_name=".tf_convpar.DeviceAttributes",
        label=field.LABEL_REPEATED,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName("tf_convpar.GetStatusResponse")
    )


_STATUS = _status_message()
