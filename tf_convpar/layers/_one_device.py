"""A parallel layer on one device: its stages, by its algorithm.

In inference a convolution may compute the layers after it in its own pass.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar import ops
from tf_convpar.algorithms import Windows
from tf_convpar.algorithms import as_layer_of
from tf_convpar.algorithms import in_one_pass
from tf_convpar.layers._activations import op_activation
from tf_convpar.layers._channel_scaling import Source
from tf_convpar.layers._channel_scaling import is_inference
from tf_convpar.layers._channel_scaling import leave_note
from tf_convpar.layers._channels import move_channels
from tf_convpar.layers._sharded_weights import InShards
from tf_convpar.ops import Epilogue
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
    """A context in which layers may return shards; elsewhere, tensors."""
    token = _to_shards.set(True)
    try:
        yield
    finally:
        _to_shards.reset(token)


def takes_shards() -> bool:
    """Whether a layer is called from within a region."""
    return _to_shards.get()


class OneDevice(InShards):
    """A layer on one device, which has all of its weights or a part."""

    def _stages(self) -> list[Stage]:
        """The functions that compute all feature maps of some samples.

        Each is one convolution, whose gradients are put in an order: of two in
        one function, shared operations would be computed twice.

        Returns:
            Functions that are called one after the other, as `compute` of
            `_on_shards`, each with the names of the weights that it takes.
        """
        raise NotImplementedError

    def _call_on_chief(self, inputs: tf.Tensor) -> Any:
        """Computes the layer on one device."""
        return super().call(inputs)

    def _call_on(self, device: str, inputs: tf.Tensor) -> Any:
        """Computes the layer on one device, by its algorithm."""
        names = [name for _, names in self._stages() for name in names]
        weights = [tf.convert_to_tensor(getattr(self, n)) for n in names]
        run = functools.partial(self._in_stages, device)
        last = self.data_format == "channels_last"
        fuses = takes_shards() and is_inference() and last
        count = len(names) - bool(self.use_bias)
        kernels, bias = weights[:count], weights[count:]
        shape = self._factors_shape(kernels[-1]) if fuses else None
        source = (
            Source(inputs)
            if shape is None
            else self._source(inputs, device, kernels[-1])
        )
        first_call = source
        if not source.in_one_pass:
            first_call = Source(inputs, activations=self._activations(device))
        fused = self._activation_among(first_call.activations)
        outputs = run(
            first_call.inputs,
            weights,
            first_call.epilogue(fused),
            first_call.zeros,
        )
        if fused != "linear":
            return outputs
        if self.activation not in (None, keras.activations.linear):
            return self.activation(outputs)
        if shape is not None:
            leave_note(outputs, run, source, kernels, bias, shape)
        return outputs

    def _in_stages(
        self,
        device: str,
        x: tf.Tensor,
        weights: Sequence[tf.Tensor],
        epilogue: Epilogue | None = None,
        zeros: Sequence[int] = (0, 0, 0, 0),
        first_filter: int = 0,
    ) -> tf.Tensor:
        """Computes all stages, one after the other.

        Args:
            device: Name of the device.
            x: The input of the first stage.
            weights: The weights of all stages; a bias that the layer does not
                have is the last one's.
            epilogue: Epilogue of the last stage, whose bias is a weight here;
                None if that stage takes none.
            zeros: Zeros around its images.
            first_filter: The number of the first filter among the layer's.
        """
        *first, (last, _) = self._stages()
        for compute, names in first:
            count = len(names)
            x = self._placed(compute, device)(x, *weights[:count])
            weights = weights[count:]
        if any(zeros):
            last = functools.partial(last, zeros=zeros)
        if epilogue is None:
            return self._placed(last, device, first_filter)(x, *weights)
        run = _with_epilogue(last, len(weights), epilogue)
        return self._placed(run, device, first_filter)(
            x, *weights, *epilogue.tensors()
        )

    def _placed(
        self,
        compute: Callable[..., tf.Tensor],
        device: str,
        first_filter: int = 0,
    ) -> Callable[..., tf.Tensor]:
        part = functools.partial(
            self._run_shard, compute, device=device, first=first_filter
        )
        return on_device(part, device, input_first=True)

    def _activation_among(self, computed: Collection[str]) -> str:
        """The layer's activation if it is one of these, else `"linear"`."""
        name = op_activation(self.activation) or "linear"
        return name if name in computed else "linear"

    def _fused_activation(self, device: str) -> str:
        """The activation that the last stage computes; `"linear"` if none."""
        return self._activation_among(self._activations(device))

    def _activations(self, device: str) -> Collection[str]:
        """Activations that the last stage computes, in training too."""
        return ()

    def _source(
        self, inputs: tf.Tensor, device: str, kernel: tf.Tensor
    ) -> Source:
        """Inputs and epilogue by which inference recomputes the layer.

        Args:
            inputs: The inputs.
            device: Name of the device.
            kernel: The last stage's.
        """
        return Source(inputs)

    def _source_in_one_pass(
        self,
        inputs: tf.Tensor,
        device: str,
        kernel: tf.Tensor,
        windows: Windows,
    ) -> Source:
        """A source that takes a whole epilogue, if the last stage does."""
        auto = self._algorithm_on(device) == "auto"
        if auto and in_one_pass(inputs, kernel, windows, device):
            return Source(inputs, activations=ops.ACTIVATIONS, in_one_pass=True)
        return Source(inputs, activations=self._activations(device))

    def _factors_shape(self, kernel: tf.Tensor) -> list[int] | None:
        """The shape in which factors of feature maps scale their kernel."""
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
        all_filters = self.filters if getattr(self, "groups", 0) == 1 else None
        with as_layer_of(all_filters):
            y = compute(
                x,
                *weights,
                channels_last=moves or not channels_first,
                device=device,
                first=first,
            )
        return move_channels(y, -1, 1) if moves else y


def _with_epilogue(
    compute: Callable[..., tf.Tensor], count: int, epilogue: Epilogue
) -> Callable[..., tf.Tensor]:
    """A stage that takes the tensors of its epilogue after its weights.

    Within a keyword they would have no gradients.

    Args:
        compute: A stage of an input and `count` weights.
        count: The number of weights.
        epilogue: The epilogue of the stage.
    """

    def run(x: tf.Tensor, *tensors: tf.Tensor, **where: Any) -> tf.Tensor:
        after = epilogue.with_tensors(tensors[count:])
        return compute(x, *tensors[:count], epilogue=after, **where)

    return run
