"""Asks every task, over the network, what it does for a while.

TensorFlow's gRPC servers, those of workers and the chief's own, offer its
profiler service. `tf.profiler.experimental.client.trace` calls that service
too, but it has each task write a file on its own machine, and prints on stdout.
"""

from __future__ import annotations

import pathlib
import tempfile
import time
from collections.abc import Iterable
from typing import Any

import grpc

from tf_convpar.cluster.spec import Task
from tf_convpar.timeline import _messages
from tf_convpar.timeline._spans import Recording
from tf_convpar.timeline._spans import from_traces

# The name of the only task, where there is no cluster.
_HERE = "/job:localhost/task:0"
_METHOD = "/tensorflow.ProfilerService/Profile"
# Seconds that the answers may take after the trace has ended.
_PATIENCE_S = 30.0
# The profiler's level with all operations, cheap ones too, but without the
# internals of TensorFlow.
_HOST_LEVEL = 2


def record(tasks: Iterable[Task] | None, duration_s: float) -> Recording:
    """Records what every task does in the next seconds.

    ```python
    recording = record(strategy.cluster.tasks, duration_s=1.0)
    draw(recording.spans, "timeline.png")
    ```

    Blocks for that time. To record a training, call it from another thread, or
    from any process that reaches the tasks.

    Args:
        tasks: Tasks of a cluster, such as `strategy.cluster.tasks`. The chief
            must be running its program. None for this process alone, which
            then needs no cluster.
        duration_s: Seconds to record.

    Returns:
        Spans, and when they began. An operation that ran when the trace began
        or ended is missing.

    Raises:
        RuntimeError: A task did not answer, or refused, perhaps because
            something else records it already. The message names the task and
            the reason.
    """
    if tasks is None:
        return from_traces({_HERE: _here(duration_s)})
    tasks = list(tasks)
    request = _request(duration_s)
    channels = {task: _channel(task) for task in tasks}
    try:
        calls = {
            task: channel.unary_unary(_METHOD).future(
                request, timeout=duration_s + _PATIENCE_S
            )
            for task, channel in channels.items()
        }
        return from_traces(
            {task.name: _trace(task, call) for task, call in calls.items()}
        )
    finally:
        for channel in channels.values():
            channel.close()


def _here(duration_s: float) -> Any:
    import tensorflow as tf

    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=_HOST_LEVEL, python_tracer_level=0
    )
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder, options)
        time.sleep(duration_s)
        tf.profiler.experimental.stop()
        (file,) = pathlib.Path(folder).rglob("*.xplane.pb")
        return _messages.Space.FromString(file.read_bytes())


def _request(duration_s: float) -> bytes:
    request = _messages.Request(
        duration_ms=max(1, round(duration_s * 1e3)), emit_xspace=True
    )
    options = request.opts
    options.version = 1
    options.duration_ms = request.duration_ms
    options.host_tracer_level = _HOST_LEVEL
    options.device_tracer_level = 1
    return request.SerializeToString()


def _channel(task: Task) -> grpc.Channel:
    return grpc.insecure_channel(
        task.address,
        options=[
            ("grpc.enable_http_proxy", 0),
            ("grpc.max_receive_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
        ],
    )


def _trace(task: Task, call: Any) -> Any:
    try:
        space = _messages.Response.FromString(call.result()).xspace
    except grpc.RpcError as error:
        raise RuntimeError(
            f"Expected {task} to record what it does. Received: "
            f"{error.code().name}, {error.details()}."
        ) from None
    if space.errors:
        raise RuntimeError(
            f"Expected {task} to record what it does. Received: "
            f"{'; '.join(space.errors)}."
        )
    return space
