"""Plans for devices that nobody has: a calibration made of a description."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras

from tf_convpar.planner import _described
from tf_convpar.planner import _graph
from tf_convpar.planner import _plan
from tf_convpar.planner import _works
from tf_convpar.planner._calibration import Calibration
from tf_convpar.planner._calibration import Device
from tf_convpar.planner._calibration import Work
from tf_convpar.planner._described import LATENCY
from tf_convpar.planner._described import LINK
from tf_convpar.planner._described import Described
from tf_convpar.planner._graph import Call
from tf_convpar.planner._graph import Graph
from tf_convpar.planner._link import Link
from tf_convpar.plans import Plan

DEVICES = "4xcpu:100GFLOPS,2xgpu:2TFLOPS"
# What a device reads or writes in the time of one operation. By data sheets
# 0.08 of an A100 (1555 GB/s, 19.5 TFLOPS), 0.06 of a V100 (900, 15.7) and 0.07
# of a Core i7-6700K (34, 0.5); and rates are what convolutions achieve, some
# two thirds of these peaks.
BYTES_PER_OPERATION = 0.1
# An update reads a parameter and its gradient, and writes it: SGD's.
_UPDATE_BYTES = 3 * 4
# These only say how numbers are to be read.
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
) -> Plan:
    """The plan of a model for devices that nobody has.

    ```python
    model = keras.applications.ResNet50(weights=None)
    plan = planner.simulate(model, "4xcpu:100GFLOPS,2xgpu:2TFLOPS", "1Gbit")
    plan.prediction.step_s
    ```

    `describe` says what layers are taken to cost.

    Args:
        model: Sequential or functional, built for images of known size; its
            weights do not matter.
        devices: `[N x]NAME[:RATE]`, separated by commas, the chief first:
            RATE is what a device achieves on convolutions, in GFLOPS or
            TFLOPS, two for a multiplication. Without it NAME is a preset, as
            `convpar simulate --presets` lists them.
        link: Rate of each device's interface, in each direction: `"1Gbit"`,
            `"1.2GB"` (a second), `"inf"`.
        latency: Of a small message: `"0.1ms"`.
        batch_size: Samples of a step.
        wire_dtype: The dtype in which to travel, None for float32.

    Returns:
        The plan. Its devices are called `"cpu:0"`, `"cpu:1"`, `"gpu:0"`.

    Raises:
        ValueError: Something cannot be read, or the model has no graph.
        RuntimeError: There is no proof within half a minute.
    """
    graph = _graph.of_model(model)
    described = _described.devices(devices)
    rate, delay = _described.link(link, latency)
    found = describe(graph, described, rate, delay, batch_size)
    return _plan.plan_graph(graph, found, wire_dtype)


def describe(
    graph: Graph,
    devices: Sequence[Described],
    bytes_per_s: float,
    latency_s: float,
    batch_size: int,
) -> Calibration:
    """What would be measured on devices that nobody has.

    ```python
    describe(graph, _described.devices("4xcpu:100GFLOPS"), 125e6, 1e-4, 32)
    ```

    Each pass of a convolution or a Dense layer takes two operations for each
    multiplication: one pass forward, and backward one for the weights'
    gradient and one for the input's, where anything before the layer learns.
    All other layers take the time of the bytes that they read and write, of
    which there are `BYTES_PER_OPERATION`: forward inputs and outputs, and
    backward the inputs a second time. Nothing is taken for starting an
    operation, for biases and activations, or beside what travels.

    Args:
        graph: Of the model.
        devices: The chief first.
        bytes_per_s: Of each device's interface, in each direction.
        latency_s: Of a small message.
        batch_size: Samples of a step.

    Raises:
        ValueError: There are no samples.
    """
    if batch_size < 1:
        raise ValueError(
            f"Expected at least one sample. Received: {batch_size}."
        )
    names = [device.name for device in devices]
    return Calibration(
        _works.fingerprint(graph),
        batch_size,
        tuple(_device(graph, device, batch_size) for device in devices),
        tuple(
            Link(a, b, bytes_per_s, latency_s)
            for a in names
            for b in names
            if a != b
        ),
        facts={_described.SOURCE: _described.DESCRIPTION},
    )


def _device(graph: Graph, device: Described, batch: int) -> Device:
    works = {
        _works.key(graph, call): _work(graph, call, batch, device.flops)
        for call in graph.calls
        if call.layer is not None
    }
    update_s = _UPDATE_BYTES / (BYTES_PER_OPERATION * device.flops)
    return Device(device.name, works, update_s)


def _work(graph: Graph, call: Call, batch: int, flops: float) -> Work:
    """In proportion to samples, and to filters."""
    forward, backward = operations(graph, call)
    return Work(
        (batch,), (batch * forward / flops,), (batch * backward / flops,)
    )


def operations(graph: Graph, call: Call) -> tuple[float, float]:
    """For one sample, forward and backward, or bytes in their place."""
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


def _bytes(graph: Graph, tensor: int) -> int:
    own = graph.tensors[tensor]
    return own.width * math.prod(own.shape)


def multiplications(graph: Graph, call: Call) -> int:
    """Of a convolution's or a Dense layer's pass, for one sample.

    ```python
    multiplications(graph, graph.calls[1])  # 118013952 of ResNet50's first
    ```

    Each number of a kernel is multiplied once for each pixel to which it is
    applied: those of the feature maps, or of the input if that is spread out
    by a transposed convolution.
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
