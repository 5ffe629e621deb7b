"""Plans for devices that nobody has, by a calibration from a description."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import keras

from tf_convpar.planner import _plan
from tf_convpar.planner import descriptions
from tf_convpar.planner import work_keys
from tf_convpar.planner._calibration import Calibration
from tf_convpar.planner._calibration import MeasuredDevice
from tf_convpar.planner._calibration import Work
from tf_convpar.planner._link import Link
from tf_convpar.planner.descriptions import LATENCY
from tf_convpar.planner.descriptions import LINK
from tf_convpar.planner.descriptions import Described
from tf_convpar.plans import Plan
from tf_convpar.sharding import Call
from tf_convpar.sharding import Graph
from tf_convpar.sharding import calls_of

DEVICES = "4xcpu:100GFLOPS,2xgpu:2TFLOPS"
# Bytes that a device reads or writes in the time of one operation. Data sheets
# give 0.08 for an A100 (1555 GB/s, 19.5 TFLOPS), 0.06 for a V100 (900, 15.7)
# and 0.07 for a Core i7-6700K (34, 0.5). The rates of descriptions are those of
# convolutions, some two thirds of these peaks, so there are more bytes for each
# operation.
BYTES_PER_OPERATION = 0.1
# Bytes of SGD's update of one parameter: it reads the parameter and its
# gradient, and writes the parameter.
_UPDATE_BYTES = 3 * 4
# Layers that take no time: they only change how numbers are read.
_VIEWS = (
    keras.layers.Flatten,
    keras.layers.Reshape,
    keras.layers.InputLayer,
    keras.layers.Identity,
)


def simulate(
    model: keras.Model,
    devices: str = DEVICES,
    link: str = LINK,
    latency: str = LATENCY,
    batch_size: int = 32,
    wire_dtype: str | None = None,
    moments: str = "all",
) -> Plan:
    """Plans a model for devices that nobody has.

    ```python
    model = keras.applications.ResNet50(weights=None)
    plan = convpar.simulate(model, "4xcpu:100GFLOPS,2xgpu:2TFLOPS", "1Gbit")
    plan.prediction.step_s
    ```

    `describe` says what layers are assumed to cost.

    Args:
        model: Sequential or functional model, built for images of known size.
            Its weights do not matter.
        devices: Devices `[N x]NAME[:RATE]`, separated by commas, the chief
            first. RATE is what a device achieves on convolutions, in GFLOPS or
            TFLOPS; a multiplication and an addition are two operations.
            Without RATE, NAME is one of the presets that
            `convpar simulate --presets` lists.
        link: Rate of each device's interface, in each direction: `"1Gbit"`,
            `"1.2GB"` (a second), `"inf"`.
        latency: Time of a small message, such as `"0.1ms"`.
        batch_size: Samples of a step.
        wire_dtype: Dtype in which tensors travel; None for their own.
        moments: As for `parallelize`.

    Returns:
        The plan. Its devices have names such as `"cpu:0"`, `"cpu:1"` and
        `"gpu:0"`.

    Raises:
        ValueError: A description cannot be read, or the model has no graph.
        RuntimeError: There is no proof within half a minute.
    """
    calibration = described(model, devices, link, latency, batch_size)
    return _plan.plan(model, calibration, wire_dtype, moments)


def described(
    model: keras.Model,
    devices: str = DEVICES,
    link: str = LINK,
    latency: str = LATENCY,
    batch_size: int = 32,
) -> Calibration:
    """The calibration that `simulate` plans from, of the same arguments."""
    rate, delay = descriptions.link(link, latency)
    return describe(
        calls_of(model),
        descriptions.devices(devices),
        rate,
        delay,
        batch_size,
    )


def describe(
    graph: Graph,
    devices: Sequence[Described],
    bytes_per_s: float,
    latency_s: float,
    batch_size: int,
) -> Calibration:
    """The calibration that would be measured on devices that nobody has.

    ```python
    describe(graph, descriptions.devices("4xcpu:100GFLOPS"), 125e6, 1e-4, 32)
    ```

    A convolution or a Dense layer has one pass forward. Backward it has one for
    the gradient of its weights, if it learns, and one for the gradient of its
    input, if a layer before it learns. Each pass takes two operations for each
    multiplication.

    All other layers take the time of the bytes that they read and write,
    `BYTES_PER_OPERATION` of them in the time of an operation. Forward these are
    inputs and outputs. Backward they are as many, and the inputs once more.

    Starting an operation, biases, activations, and what a processor does for
    transfers are assumed to cost nothing.

    Args:
        graph: Graph of the model.
        devices: Described devices, the chief first.
        bytes_per_s: Rate of each device's interface, in each direction, in
            bytes per second.
        latency_s: Seconds of a small message.
        batch_size: Samples of a step.

    Raises:
        ValueError: `batch_size` is below 1.
    """
    if batch_size < 1:
        raise ValueError(
            f"Expected at least one sample. Received: {batch_size}."
        )
    names = [device.name for device in devices]
    return Calibration(
        work_keys.fingerprint(graph),
        batch_size,
        tuple(_device(graph, device, batch_size) for device in devices),
        tuple(
            Link(*ends, bytes_per_s, latency_s)
            for ends in itertools.permutations(names, 2)
        ),
        facts={descriptions.SOURCE: descriptions.DESCRIPTION},
    )


def _device(graph: Graph, device: Described, batch: int) -> MeasuredDevice:
    works = {
        work_keys.key(graph, call): _work(graph, call, batch, device.flops)
        for call in graph.calls
        if call.layer is not None
    }
    update_s = _UPDATE_BYTES / (BYTES_PER_OPERATION * device.flops)
    return MeasuredDevice(device.name, works, update_s)


def _work(graph: Graph, call: Call, batch: int, flops: float) -> Work:
    """Times in proportion to samples and to filters."""
    forward, backward = operations(graph, call)
    return Work(
        (batch,), (batch * forward / flops,), (batch * backward / flops,)
    )


def operations(graph: Graph, call: Call) -> tuple[float, float]:
    """Operations for one sample, forward and backward.

    Bytes are given as the operations that take the same time.
    """
    layer = call.layer
    learns = bool(getattr(layer, "trainable_weights", ()))
    if call.splits or isinstance(layer, keras.layers.Dense):
        once = 2.0 * multiplications(graph, call)
        return once, once * (call.before + learns)
    if isinstance(layer, _VIEWS):
        return 0.0, 0.0
    read = sum(_bytes(graph, x) for x in call.inputs)
    written = sum(_bytes(graph, y) for y in call.outputs)
    forward = (read + written) / BYTES_PER_OPERATION
    if not call.before and not learns:
        return forward, 0.0
    return forward, forward + read / BYTES_PER_OPERATION


def _bytes(graph: Graph, index: int) -> int:
    tensor = graph.tensors[index]
    return tensor.width * math.prod(tensor.shape)


def multiplications(graph: Graph, call: Call) -> int:
    """Multiplications in a pass of a convolution or Dense layer, per sample.

    ```python
    multiplications(graph, graph.calls[1])  # 118013952 of ResNet50's first
    ```

    Each number of a kernel is multiplied once for each pixel to which the
    kernel is applied. These are the pixels of the feature maps. For a
    transposed convolution, which spreads out its input, they are those of the
    input.
    """
    layer: Any = call.layer
    (x,), (y,) = call.inputs, call.outputs
    spread = "Transpose" in type(layer).__name__
    shape = graph.tensors[x if spread else y].shape
    last = getattr(layer, "data_format", "channels_last") == "channels_last"
    pixels = math.prod(shape[:-1] if last else shape[1:])
    return pixels * sum(
        math.prod(weight.shape)
        for weight in layer.weights
        if len(weight.shape) > 1
    )
