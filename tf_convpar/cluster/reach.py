"""Asks tasks whether they reach one another, as only they can tell.

A firewall, a cable or a route between two workers may fail while the chief
reaches both. Then all tasks answer, and the step waits for a tensor that never
comes. So each of them is asked for the others: TensorFlow's server has the
service of a session's master too, and a master that is to make a session first
asks the tasks that the session names for their devices. Here each session names
one task, and has an option that is refused after that: none is made.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message_factory

from tf_convpar.cluster.spec import Task
from tf_convpar.cluster.status import ask
from tf_convpar.cluster.status import channel_to

_METHOD = "/tensorflow.MasterService/CreateSession"

# One task, and another one that it should reach.
Pair = tuple[Task, Task]


class Reach:
    """Asks tasks whether they reach others, all at the same time.

    ```python
    with Reach([(a, b), (b, a)]) as reach:
        reach.answers(timeout_s=5.0)  # {(a, b): True, (b, a): None}
    ```

    A task that does not reach the other one says nothing, and answers when it
    does. So a question may be left open for as long as that takes.

    Args:
        pairs: For each question, the task that is asked, and the one that it
            should reach.
    """

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self.pairs = list(pairs)
        self._channels = {
            task: channel_to(task) for task in dict.fromkeys(dict(self.pairs))
        }
        self._calls = {
            (task, other): self._channels[task]
            .unary_unary(_METHOD)
            .future(_request(other), wait_for_ready=True)
            for task, other in self.pairs
        }

    def __enter__(self) -> Reach:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def answers(self, timeout_s: float) -> dict[Pair, bool | None]:
        """Answers after `timeout_s`, or as soon as there are all.

        Returns:
            For each pair whether the first task reaches the second. None is for
            no answer yet, False for an attempt that failed.
        """
        until = time.monotonic() + timeout_s
        answers: dict[Pair, bool | None] = {}
        for pair, call in self._calls.items():
            try:
                error = call.exception(max(0.0, until - time.monotonic()))
                refused = grpc.StatusCode.INVALID_ARGUMENT
                answers[pair] = error is not None and error.code() == refused
            except grpc.FutureTimeoutError:
                answers[pair] = None
            except grpc.FutureCancelledError:
                answers[pair] = False
        return answers

    def close(self) -> None:
        """Ends all questions."""
        for channel in self._channels.values():
            channel.close()


def cut_off_pairs(
    chief: Task, workers: Sequence[Task], timeout_s: float
) -> list[Pair]:
    """Pairs of tasks that answer this process, but do not reach one another.

    Args:
        chief: The task of this process, which workers should reach as well.
        workers: All other tasks.
        timeout_s: Seconds in which a task answers that is alive.
    """
    everyone = (chief, *workers)
    asked = [(w, o) for w in workers for o in everyone if w != o]
    with Reach(asked) as reach:
        answers = reach.answers(timeout_s)
    cut = {frozenset(pair) for pair, reached in answers.items() if not reached}
    # A task that is gone or hangs does not answer the others either.
    suspects = set().union(*cut) - {chief}
    answering = {
        task
        for task, answer in ask(suspects, timeout_s, patient=False).items()
        if not isinstance(answer, str)
    } | {chief}
    return [
        (a, b)
        for i, a in enumerate(everyone)
        for b in everyone[i + 1 :]
        if {a, b} in cut and {a, b} <= answering
    ]


def vertex_cover(pairs: Collection[Pair], among: Sequence[Task]) -> list[Task]:
    """Few tasks of which each pair has one: those in most pairs first.

    Args:
        pairs: Pairs of tasks that do not reach one another.
        among: Tasks that may be removed; of two in as many pairs, the later.
    """
    left, removed = list(pairs), list[Task]()
    while left:
        count = {task: sum(task in pair for pair in left) for task in among}
        most = max(reversed(among), key=lambda task: count[task])
        if not count[most]:
            break
        removed.append(most)
        left = [pair for pair in left if most not in pair]
    return removed


def _request(other: Task) -> bytes:
    message = _CREATE_SESSION()
    # Other tasks of the cluster are not asked: they may be gone.
    message.config.device_filters.append(other.name)
    # Masters refuse it, once they have found all devices.
    message.config.use_per_session_threads = True
    return bytes(message.SerializeToString())


def _create_session() -> Any:
    """The part of tensorflow.CreateSessionRequest that is used here.

    As in `status`. Field numbers are those of
    tensorflow/core/protobuf/master.proto and config.proto.
    """
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="tf_convpar/reach.proto", package="tf_convpar", syntax="proto3"
    )
    config = file.message_type.add(name="Config")
    config.field.add(
        name="device_filters",
        number=4,
        type=field.TYPE_STRING,
        label=field.LABEL_REPEATED,
    )
    config.field.add(
        name="use_per_session_threads",
        number=9,
        type=field.TYPE_BOOL,
        label=field.LABEL_OPTIONAL,
    )
    file.message_type.add(name="CreateSession").field.add(
        name="config",
        number=2,
        type=field.TYPE_MESSAGE,
        type_name=".tf_convpar.Config",
        label=field.LABEL_OPTIONAL,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName("tf_convpar.CreateSession")
    )


_CREATE_SESSION = _create_session()
