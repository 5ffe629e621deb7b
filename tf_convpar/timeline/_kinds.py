"""Kinds of operations in a training step, by their names in a trace."""

from __future__ import annotations

import re

FORWARD = "forward convolution"
INPUT_GRADIENT = "input gradient"
KERNEL_GRADIENT = "kernel gradient"
JOIN = "join and cut"
SEND = "send"
REST = "rest"
# All kinds of operations, in the order of a legend.
KINDS = (FORWARD, INPUT_GRADIENT, KERNEL_GRADIENT, JOIN, SEND, REST)
# A whole training step as its chief sees it, which is not an operation.
STEP = "step"

# A trace names an operation `scope/of/op:Type`. Its other events, such as
# `ExecutorState::Process` and `EagerExecute`, are the runtime's own.
_OPERATION = re.compile(r"(?P<scope>[^: ]+):(?P<type>[^: ]+)")
_STEP = re.compile(r"EagerLocalExecute: __inference_(\w*step\w*?)_\d+")
# Convolutions: bare, fused and oneDNN forms (Conv2D, _FusedConv2D,
# _MklNativeConv2D, ...), and this package's own.
_CONVOLUTION = re.compile(
    r"(Conv[23]D|DepthwiseConv2dNative|TfConvpar>(Bilinear|Convolution|Depthwise))"
)
_OF_KERNEL = re.compile(r"BackpropFilter|KernelGradient")
# The operations of this package that join and cut, and those of its twin.
_JOIN = re.compile(
    r"TfConvpar>(Concat|Split)Shards|(_Mkl)?ConcatV2|SplitV?|_MklSlice|Slice"
)
_SEND = re.compile(r"_(Host)?Send|TfConvpar>(Exchange|Sum)Rows")


def kind_of(name: str) -> str | None:
    """The kind of an event of a trace; None if it is no operation or step.

    ```python
    kind_of("gradient_tape/conv2d/Conv2DBackpropInput:Conv2DBackpropInput")
    # "input gradient"
    kind_of("ExecutorState::Process")  # None
    ```

    A transposed convolution runs as the input gradient of a convolution, so
    only its scope tells whether an operation belongs to a backward pass.
    """
    if _STEP.fullmatch(name):
        return STEP
    operation = _OPERATION.fullmatch(name)
    if operation is None:
        return None
    kind = operation["type"]
    if _CONVOLUTION.search(kind):
        if _OF_KERNEL.search(kind):
            return KERNEL_GRADIENT
        return INPUT_GRADIENT if "gradient" in operation["scope"] else FORWARD
    if _JOIN.fullmatch(kind):
        return JOIN
    return SEND if _SEND.fullmatch(kind) else REST
