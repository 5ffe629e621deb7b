"""The three primitives that carry all placement.

Each has a gradient that is its own mirror image. Nothing else in the package
opens a device scope around the arithmetic of a training step.

Why `tf.custom_gradient`: TensorFlow places a gradient op on whatever device is
current when the gradient is taken, not on the device of the op it belongs to.
Why the *call* is inside the device scope, and not the body alone:
`tf.custom_gradient` passes its arguments and results through an `IdentityN`
that sits on the device of the call. On any other device it would pull every
tensor over the wire and back.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar import ops
from tf_convpar._compat.tensorflow import recording
from tf_convpar._compat.tensorflow import should_record_backprop


def on_device(
    fn: Callable[..., Any], device: str, *, input_first: bool = False
) -> Callable[..., Any]:
    """A function that runs `fn` on `device`, and its gradient there as well.

    ```python
    conv = on_device(tf.nn.relu, "/job:worker/task:1/device:GPU:0")
    y = conv(x)  # x travels there; y and later dx are computed there
    ```

    Args:
        fn: Function that takes tensors and returns a tensor or a list of
            tensors, made of differentiable TensorFlow ops. It must not read
            variables: read them outside and pass the tensors.
        device: A device name.
        input_first: Whether the gradient of the first argument is computed
            before those of the rest, and not beside them. Other devices may
            wait for it, and two convolutions on one core push each other's
            data out of its caches.

    Returns:
        A function of the same arguments. Derivatives of any order are taken
        on `device`.
    """

    def placed(ordered: bool, *args: tf.Tensor) -> Any:
        # One tensor may be two arguments, each with a gradient of its own.
        args = tuple(
            tf.identity(x) if any(x is y for y in args[:i]) else x
            for i, x in enumerate(args)
        )
        # Persistent, since a persistent outer tape may come here again.
        with recording(), tf.GradientTape(persistent=True) as tape:
            tape.watch(
                [x for x in args if x.dtype.is_floating or x.dtype.is_complex]
            )
            result = fn(*map(_first_or_own, args, _earlier(args)))

        def gradient(*upstream: tf.Tensor) -> Any:
            upstream_gradients = list(upstream)
            with tf.device(device):
                if ordered:
                    grads = [tape.gradient(result, args[0], upstream_gradients)]
                    first = [g for g in grads if g is not None]
                    with tf.control_dependencies(first):
                        grads += tape.gradient(
                            result, args[1:], upstream_gradients
                        )
                else:
                    grads = tape.gradient(result, args, upstream_gradients)
                # Even a gradient that passes unchanged is put on this device:
                # the tape adds up a tensor's gradients where all of them are.
                grads = [g if g is None else ops.copied(g) for g in grads]
            return grads[0] if len(args) == 1 else grads

        return result, gradient

    def run(*args: Any) -> Any:
        # A first gradient that nobody asks for is not computed, and the others
        # do not wait for it.
        ordered = (
            input_first
            and len(args) > 1
            and not tf.executing_eagerly()
            and should_record_backprop([args[0]])
        )
        with tf.device(device):
            return tf.custom_gradient(lambda *a: placed(ordered, *a))(*args)

    return run


def _earlier(args: Sequence[tf.Tensor]) -> list[Sequence[tf.Tensor]]:
    return [args[:i] for i in range(len(args))]


def _first_or_own(x: tf.Tensor, earlier: Sequence[tf.Tensor]) -> tf.Tensor:
    """An argument whose gradient is no tensor that is another's gradient too.

    TensorFlow's tape counts a tensor too often that is the gradient of two of
    its sources. It is never freed then, nor is the graph that it is in.
    """
    if any(x.shape.is_compatible_with(y.shape) for y in earlier):
        x = _own_gradient(x)
    return x


@tf.custom_gradient
def _own_gradient(x: tf.Tensor) -> Any:
    return tf.identity(x), ops.copied


def broadcast(
    x: tf.Tensor,
    devices: Sequence[str],
    owner: str,
    wire_dtype: str | None = None,
    after: tf.Tensor | None = None,
) -> list[tf.Tensor]:
    """Sends `x` from its owner to each device.

    ```python
    copies = broadcast(x, ["/device:CPU:0", "/device:CPU:1"], "/device:CPU:0")
    ```

    The gradient is the mirror image: the partial gradients of all devices
    return to the owner and are summed there, in float32 or wider.

    Args:
        x: Any tensor.
        devices: Names of the devices that need it. The owner may be among
            them, and gets its copy without conversion.
        owner: The device that holds `x`.
        wire_dtype: The dtype in which copies and partial gradients travel;
            None for `x`'s own.
        after: A tensor on the owner that must be computed before `x` is sent;
            None to send it at once.

    Returns:
        One tensor per device, on that device, in `x`'s dtype.
    """
    x = tf.convert_to_tensor(x)
    wire = tf.as_dtype(wire_dtype or x.dtype)
    travels = [device != owner for device in devices]

    @tf.custom_gradient
    def fan_out(x: tf.Tensor) -> Any:
        narrowed = tf.cast(x, wire)
        copies = [narrowed if t else tf.identity(x) for t in travels]

        def gradient(*partials: tf.Tensor) -> tf.Tensor:
            # They are converted before they are added: sums of narrow floats
            # would lose what each partial gradient still holds.
            wide = tf.float32 if x.dtype.size < 4 else x.dtype
            with tf.device(owner):
                total = tf.add_n([tf.cast(p, wide) for p in partials])
                return tf.cast(total, x.dtype)

        return copies, gradient

    first = [] if after is None else [after]
    with tf.device(owner), tf.control_dependencies(first):
        copies = fan_out(x)

    def unpack(narrowed: tf.Tensor) -> tf.Tensor:
        return tf.cast(narrowed, x.dtype)

    received = []
    for copy, device, t in zip(copies, devices, travels, strict=True):
        if t and wire != x.dtype:
            copy = on_device(unpack, device)(copy)
        elif t:
            # Nothing is computed, nor in the gradient.
            with tf.device(device):
                copy = tf.identity(copy)
        received.append(copy)
    return received


def concat_shards(
    shards: Sequence[tf.Tensor],
    device: str,
    axis: int = -1,
    dtype: Any = None,
) -> tf.Tensor:
    """Joins shards of unequal width along the channel axis, on `device`.

    ```python
    y = concat_shards([y0, y1, y2], "/job:chief/task:0/device:CPU:0")
    ```

    The gradient is cut into contiguous shards in one pass on `device`, and
    each goes back to where its shard came from.

    Args:
        shards: Tensors that differ in their channel axis only. Their dtypes
            may differ: what has travelled may be narrower than what has not.
        device: The device on which the joined tensor is wanted.
        axis: The channel axis: -1 (channels last) or 1 (channels first).
        dtype: Dtype of the result; None for that of the first shard.

    Returns:
        The joined tensor.
    """
    native = ops.native_on("ConcatShards", device)

    def join(*shards: tf.Tensor) -> tf.Tensor:
        return ops.concat_shards(shards, axis=axis, dtype=dtype, native=native)

    return on_device(join, device)(*shards)


def device_type(device: str) -> str:
    """The type in a device name, such as `"GPU"`; `"CPU"` if it has none."""
    return tf.DeviceSpec.from_string(device).device_type or "CPU"
