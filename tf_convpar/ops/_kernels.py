"""Whether a compiled op has a kernel on a device."""

from __future__ import annotations

import functools

import tensorflow as tf

from tf_convpar._compat.tensorflow import get_registered_kernels_for_op

from . import _library


def native_on(op: str, device: str) -> bool | None:
    """The argument `native` of an op on a device: None if it runs, else False.

    ```python
    native = native_on("ConcatShards", "/device:GPU:0")
    ```

    Every compiled op runs on a CPU. Some were built for GPUs as well, if there
    was a compiler for them. These run on a GPU if a trial there gives what it
    should: the driver may be older than the kernels, and the worker at the
    other end may have been built without them.

    Args:
        op: Name of the op, without the package's own prefix.
        device: Name of a device of any task.
    """
    kind = tf.DeviceSpec.from_string(device).device_type or "CPU"
    if kind == "CPU":
        return None
    built = _library.load() and kind in device_types(op)
    return None if built and joins_on(device) else False


def device_types(op: str) -> set[str]:
    """Types of the devices that this library has a kernel of an op for."""
    registered = get_registered_kernels_for_op(f"TfConvpar>{op}")
    return {kernel.device_type for kernel in registered.kernel}


def joins_on(device: str) -> bool:
    """Whether the compiled op joins shards on this device itself.

    A task that does not answer is asked again the next time.
    """
    try:
        return _joins_on(device)
    except _TRANSIENT:
        return False


_TRANSIENT = (
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)


@functools.cache  # Answers, and no errors.
def _joins_on(device: str) -> bool:
    # This may be called while a graph is traced.
    with tf.init_scope():
        try:
            with tf.device(device):
                shards = [tf.ones((2, 1)), tf.zeros((2, 2), tf.bfloat16)]
                joined = _library.module().tf_convpar_concat_shards(
                    shards, U=tf.float32
                )
            numbers = joined.numpy().tolist()
        except _TRANSIENT:
            raise
        except (tf.errors.OpError, RuntimeError):
            return False
    # TensorFlow may have put it on another one, of the same type even.
    wanted = tf.DeviceSpec.from_string(device)
    placed = tf.DeviceSpec.from_string(joined.device)
    is_there = placed.make_merged_spec(wanted) == placed
    return is_there and numbers == [[1, 0, 0]] * 2
