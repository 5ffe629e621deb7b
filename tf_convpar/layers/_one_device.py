"""A layer that one device computes, and what inference can fuse into it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar.layers._channel_scaling import Source
from tf_convpar.layers._channel_scaling import leave_note
from tf_convpar.layers._stage import Stage
from tf_convpar.layers._stage import in_stages


def call_on(
    device: str, layer: Any, stages: Sequence[Stage], inputs: tf.Tensor
) -> Any:
    """Computes a layer on one device, by its algorithm.

    Args:
        device: Name of the device.
        layer: The layer.
        stages: Its stages.
        inputs: Its inputs.
    """
    names = [name for stage in stages for name in stage.names]
    weights = [tf.convert_to_tensor(getattr(layer, n)) for n in names]
    last = stages[-1]
    kernels, bias = _kernels_and_bias(layer, weights)
    shape = last.factors_shape(kernels[-1]) if layer.leaves_notes else None
    source = Source(inputs)
    if shape is not None:
        source = last.source(inputs, device, kernels[-1])
    first_call = source
    if not source.in_one_pass:
        first_call = Source(inputs, activations=last.activations(device))
    fused = last.activation_among(first_call.activations)
    run = functools.partial(in_stages, stages, device)
    outputs = run(
        first_call.inputs,
        weights,
        first_call.epilogue(fused),
        first_call.zeros,
    )
    if fused != "linear":
        return outputs
    if layer.activation not in (None, keras.activations.linear):
        return layer.activation(outputs)
    if shape is not None:
        leave_note(outputs, run, source, kernels, bias, shape)
    return outputs


def leave_notes(
    layer: Any,
    stages: Sequence[Stage],
    maps: Sequence[tf.Tensor],
    devices: Sequence[str],
    inputs: Sequence[tf.Tensor],
    weights: Sequence[Sequence[tf.Tensor]],
    firsts: Sequence[int],
) -> None:
    """Leaves notes on maps in shards of how to recompute them scaled.

    Args:
        layer: The layer, which one other layer alone uses.
        stages: Its stages.
        maps: The feature maps of each device.
        devices: Names of the devices.
        inputs: The input of each, for all stages.
        weights: For each weight of all stages, its tensor on each device.
        firsts: The first filter of each device.
    """
    linear = layer.activation in (None, keras.activations.linear)
    if not (layer.leaves_notes and linear):
        return
    last = stages[-1]
    for device, y, x, first, *operands in zip(
        devices, maps, inputs, firsts, *weights, strict=False
    ):
        kernels, bias = _kernels_and_bias(layer, operands)
        shape = last.factors_shape(kernels[-1])
        if shape is None:
            return
        source = last.source(x, device, kernels[-1])
        run = functools.partial(in_stages, stages, device, first=first)
        leave_note(y, run, source, kernels, bias, shape)


def _kernels_and_bias(
    layer: Any, weights: Sequence[tf.Tensor]
) -> tuple[Sequence[tf.Tensor], Sequence[tf.Tensor]]:
    count = len(weights) - bool(layer.use_bias)
    return weights[:count], weights[count:]
