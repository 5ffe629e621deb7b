"""A parallel layer on one device: its stages, by its algorithm.

In inference what follows a convolution may be computed in the same pass.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tf_convpar import ops
from tf_convpar.algorithms import Windows
from tf_convpar.algorithms import as_with
from tf_convpar.algorithms import in_one_pass
from tf_convpar.layers._activations import op_activation
from tf_convpar.layers._channel_scaling import Again
from tf_convpar.layers._channel_scaling import is_inference
from tf_convpar.layers._channel_scaling import leave_note
from tf_convpar.layers._channels import move_channels
from tf_convpar.layers._stored import InShards
from tf_convpar.placement import device_type
from tf_convpar.placement import on_device

# Whether a layer is called where its result may be shards.
_to_shards: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "to_shards", default=False
)

# A function for `ConvParallel._on_shards`, and the names of its weights.
Stage = tuple[Callable[..., tf.Tensor], list[str]]


@contextlib.contextmanager
def within_region() -> Iterator[None]:
    """Within it, layers may return shards; elsewhere they return tensors."""
    token = _to_shards.set(True)
    try:
        yield
    finally:
        _to_shards.reset(token)


def takes_shards() -> bool:
    """Whether a layer is called from within a region."""
    return _to_shards.get()


class OneDevice(InShards):
    """What a layer computes on one device, of all of its weights or a part."""

    def _stages(self) -> list[Stage]:
        """The functions that compute all feature maps of some samples.

        Each is one convolution, whose gradients are put in an order: of two in
        one function, what both need would be computed twice.

        Returns:
            Functions that are called one after the other, as `compute` of
            `_on_shards`, each with the names of the weights that it takes.
        """
        raise NotImplementedError

    def _call_whole(self, inputs: tf.Tensor) -> Any:
        """Computes the layer on one device."""
        return super().call(inputs)

    def _call_on(self, device: str, inputs: tf.Tensor) -> Any:
        """Computes the layer on one device, by its algorithm."""
        stages = self._stages()
        names = [name for _, names in stages for name in names]

        def run(x: tf.Tensor, *given: tf.Tensor, **extra: Any) -> tf.Tensor:
            for number, (compute, own) in enumerate(stages, 1):
                count = len(own)
                if number == len(stages):
                    # A bias that the layer does not have is the last one's.
                    compute, tensors = _with_tensors(compute, len(given), extra)
                    given = (*given, *tensors)
                    count = len(given)
                part = functools.partial(
                    self._run_shard, compute, device=device, first=0
                )
                placed = on_device(part, device, input_first=True)
                x, given = placed(x, *given[:count]), given[count:]
            return x

        weights = [tf.convert_to_tensor(getattr(self, n)) for n in names]
        shape = self._factors_shape()
        again: Again | None = None
        if shape is not None and takes_shards() and is_inference():
            again = self._again(inputs, device)
        one_pass = again is not None and again.by_itself
        extra: dict[str, Any] = {}
        if again is not None and one_pass:
            inputs, extra = again.inputs, dict(again.extra)
        if self.activation not in (None, keras.activations.linear):
            name = op_activation(self.activation)
            own = ops.ACTIVATIONS if one_pass else self._activations(device)
            if name in own:
                return run(inputs, *weights, **extra, activation=name)
            return self.activation(run(inputs, *weights, **extra))
        outputs = run(inputs, *weights, **extra)
        if shape is not None and again is not None:
            count = len(names) - bool(self.use_bias)
            kernels, bias = weights[:count], weights[count:]
            leave_note(outputs, run, again, kernels, bias, shape)
        return outputs

    def _activations(self, device: str) -> Collection[str]:
        """Which activations its last stage computes, in training too."""
        return ()

    def _again(self, inputs: tf.Tensor, device: str) -> Again:
        """What the layer is computed of in inference, of an input."""
        return Again(inputs)

    def _again_in_one_pass(
        self, inputs: tf.Tensor, device: str, kernel: Any, windows: Windows
    ) -> Again:
        """If the last stage is made so, what scales it is a part of it."""
        kernel = tf.convert_to_tensor(kernel)
        auto = self._algorithm_on(device) == "auto"
        if auto and in_one_pass(inputs, kernel, windows, device):
            return Again(inputs, {}, ops.ACTIVATIONS, by_itself=True)
        return Again(inputs, {}, self._activations(device))

    def _factors_shape(self) -> list[int] | None:
        """The shape in which factors of all feature maps scale the kernel."""
        return None

    def _with_bias(self, kernel: str = "kernel") -> list[str]:
        """The names of a kernel and, if the layer has one, of the bias."""
        return [kernel, "bias"] if self.use_bias else [kernel]

    def _algorithm_on(self, device: str) -> str:
        """The layer's algorithm; `"direct"` on a GPU, where cuDNN chooses."""
        on_cpu = device_type(device) == "CPU"
        return str(self.algorithm) if self.algorithm and on_cpu else "direct"

    def _run_shard(
        self,
        compute: Callable[..., tf.Tensor],
        x: tf.Tensor,
        *weights: tf.Tensor,
        device: str,
        first: int,
    ) -> tf.Tensor:
        """Computes one shard's part; called within `on_device`."""
        channels_first = self.data_format == "channels_first"
        # TensorFlow's CPU convolutions take channels last only.
        moves = channels_first and device_type(device) == "CPU"
        if moves:
            x = move_channels(x, 1, -1)
        # Weights come as they are stored; mixed precision converts them here.
        weights = tuple(tf.cast(weight, x.dtype) for weight in weights)
        # A layer has one race on each kind of processor, as it was measured for
        # a plan, and not one more for each part that a device may have.
        whole = self.filters if getattr(self, "groups", 0) == 1 else None
        with as_with(whole):
            y = compute(
                x,
                *weights,
                channels_last=moves or not channels_first,
                device=device,
                first=first,
            )
        return move_channels(y, -1, 1) if moves else y


def _with_tensors(
    compute: Callable[..., tf.Tensor], count: int, extra: dict[str, Any]
) -> tuple[Callable[..., tf.Tensor], list[tf.Tensor]]:
    """A function of more tensors, which would otherwise have no gradients.

    Args:
        compute: A function of an input and `count` weights.
        count: The number of weights.
        extra: What else it takes, by names.

    Returns:
        The function, which takes an input, weights and the tensors of `extra`;
        and these tensors.
    """
    leaves = tf.nest.flatten(extra)
    places = [i for i, leaf in enumerate(leaves) if tf.is_tensor(leaf)]

    def run(x: tf.Tensor, *given: tf.Tensor, **where: Any) -> tf.Tensor:
        own = list(leaves)
        for place, tensor in zip(places, given[count:], strict=True):
            own[place] = tensor
        packed = tf.nest.pack_sequence_as(extra, own)
        return compute(x, *given[:count], **where, **packed)

    return run, [leaves[place] for place in places]
