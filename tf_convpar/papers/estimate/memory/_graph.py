"""A training step as TensorFlow's graph: what it makes, and what needs it.

The graph is traced, never run. It is traced for a batch whose number of images
is a large prime. A size that is divisible by that prime grows with the batch,
so that one trace tells the bytes of every tensor for every batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from tf_convpar._compat.keras import layers_of

# The batch of the trace, larger than any other size, and no factor of one.
_MANY = 1_000_003
# What stands before a layer's place in the name of an operation.
_MARK = "convpar.layer."

# Operations whose results are their first argument under another name.
_ALIASES = frozenset(
    "Identity IdentityN StopGradient PreventGradient Reshape Squeeze "
    "ExpandDims Bitcast CheckNumerics EnsureShape".split()
)
# Operations that compute number by number, and so can write into the memory of
# an argument that nothing needs any more. (In TensorFlow:
# `forward_input_or_allocate_output`.)
_IN_PLACE = frozenset(
    "Abs Add AddN AddV2 BiasAdd Ceil ClipByValue Div DivNoNan Elu EluGrad "
    "Erf Exp Expm1 Floor FloorDiv Inv LeakyRelu LeakyReluGrad Log Log1p "
    "LogSoftmax Maximum Minimum Mul MulNoNan Neg Pow RealDiv Reciprocal Relu "
    "Relu6 Relu6Grad ReluGrad Round Rsqrt RsqrtGrad SelectV2 Selu SeluGrad "
    "Sigmoid SigmoidGrad Sign Softmax Softplus SoftplusGrad Softsign Sqrt "
    "SqrtGrad Square SquaredDifference Sub Tanh TanhGrad Xdivy".split()
)
# Operations whose results have no memory of their own.
_FREE = frozenset("Const Placeholder ReadVariableOp VarHandleOp".split())


@dataclasses.dataclass(frozen=True)
class Size:
    """Bytes that grow with the batch, by `each * batch**power`."""

    each: int
    power: int

    def at(self, batch: int) -> int:
        """Bytes for a number of images."""
        return self.each * batch**self.power


@dataclasses.dataclass(frozen=True)
class TracedOperation:
    """One operation of a step.

    Attributes:
        name: TensorFlow's name for it, a path of layers' names.
        kind: TensorFlow's type of operation, such as `"Conv2D"`.
        layer: Place among `layers_of(model)` of the innermost layer that it
            belongs to; None outside of layers. The gradients of what a layer
            computes belong to it too.
        is_backward: Whether it belongs to the gradients or the update.
        is_update: Whether it belongs to the update.
        inputs: Tensors that it reads, as indices into `StepGraph.sizes`.
        outputs: Tensors that it makes, as indices into `StepGraph.sizes`.
        after: Operations that it waits for beside those that make its inputs,
            as indices into `StepGraph.operations`.
    """

    name: str
    kind: str
    layer: int | None
    is_backward: bool
    is_update: bool
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    after: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class StepGraph:
    """The training step of a model and an optimizer, for any batch.

    Attributes:
        operations: The operations in the order of their trace, each after those
            whose results it needs.
        sizes: Size of each tensor. Several names of one memory are one tensor.
        reads: For each variable, by the index of its handle in `sizes`, the
            tensors that are its value.
        inputs: Bytes of what is fed: images, and targets of the size of the
            model's results.
        slots: Bytes of the optimizer's variables, by the path of the weight
            that each belongs to. Those that belong to none are under "".
    """

    operations: tuple[TracedOperation, ...]
    sizes: tuple[Size, ...]
    reads: dict[int, tuple[int, ...]]
    inputs: Size
    slots: dict[str, int]


def trace(model: Any, optimizer: Any) -> StepGraph:
    """The graph of a training step.

    Args:
        model: A Keras model that is built.
        optimizer: A Keras optimizer. Neither it nor the model is changed.

    Raises:
        ValueError: The model has no inputs of known size.
    """
    import keras
    import tensorflow as tf

    specs = [
        tf.TensorSpec((_MANY, *_shape(x)), x.dtype) for x in _inputs(model)
    ]
    fresh = optimizer.__class__.from_config(optimizer.get_config())
    fresh.build(model.trainable_variables)
    slots = _slots(fresh, model)

    # The number of operations after the forward pass, and after the gradients.
    ends: list[int] = []
    targets: list[Any] = []
    loss_of = keras.losses.MeanSquaredError()

    def step(*inputs: Any) -> None:
        ends.clear()
        targets.clear()
        images = inputs[0] if len(inputs) == 1 else list(inputs)
        with tf.GradientTape() as tape:
            results = keras.tree.flatten(model(images, training=True))
            # The gradient of this loss reads its differences, as that of most
            # losses does. These are small for classes, and as large as feature
            # maps for images.
            targets.extend(
                tf.compat.v1.placeholder(r.dtype, r.shape) for r in results
            )
            loss = tf.add_n(list(map(loss_of, targets, results)))
        ends.append(_count())
        gradients = tape.gradient(loss, model.trainable_variables)
        ends.append(_count())
        fresh.apply(gradients, model.trainable_variables)

    # Whatever still refers to the graph keeps these variables alive, so their
    # memory is given back here.
    for variable in fresh.variables:
        tf.raw_ops.AssignVariableOp(
            resource=variable.value.handle, value=tf.zeros((), variable.dtype)
        )
    with _direct(model), _marked(model):
        # Without AutoGraph, whose rewriting Keras does not need.
        graph = (
            tf.function(step, autograph=False)
            .get_concrete_function(*specs)
            .graph
        )
    operations = graph.get_operations()
    parts = {
        op.name: sum(place >= end for end in ends)
        for place, op in enumerate(operations)
    }
    reader = _Reader()
    for op in _needed(operations):
        reader.take(op, parts[op.name])
    return StepGraph(
        tuple(reader.operations),
        tuple(reader.sizes),
        reader.reads,
        Size(sum(_size(fed).each for fed in (*specs, *targets)), 1),
        slots,
    )


def _inputs(model: Any) -> list[Any]:
    try:
        inputs = list(model.inputs or ())
    except (AttributeError, ValueError):
        inputs = []
    if not inputs:
        raise ValueError(
            "Expected a Sequential or functional model that is built, so that "
            f"the sizes of its inputs are known. Received: '{model.name}', a "
            f"{type(model).__name__} without."
        )
    return inputs


def _shape(tensor: Any) -> tuple[int, ...]:
    """Shape of one of the model's inputs, without its batch."""
    shape = tuple(tensor.shape[1:])
    if None in shape:
        raise ValueError(
            "Expected a model whose inputs have known sizes, apart from the "
            f"batch. Received an input '{tensor.name}' of shape "
            f"{tuple(tensor.shape)}. Build the model for one size of images."
        )
    return shape


def _slots(optimizer: Any, model: Any) -> dict[str, int]:
    """Bytes of an optimizer's variables; see `StepGraph.slots`."""
    # Keras names a slot after its weight.
    names = {
        weight.path.replace("/", "_") + "_": weight.path
        for weight in model.trainable_variables
    }
    by_path: dict[str, int] = {}
    for variable in optimizer.variables:
        name = variable.path.rpartition("/")[2]
        prefix = max(
            (n for n in names if name.startswith(n)), key=len, default=""
        )
        path = names.get(prefix, "")
        by_path[path] = by_path.get(path, 0) + variable_bytes(variable)
    return by_path


def variable_bytes(variable: Any) -> int:
    """Bytes of a Keras variable."""
    import tensorflow as tf

    return int(math.prod(variable.shape) * tf.as_dtype(variable.dtype).size)


@contextlib.contextmanager
def _direct(model: Any) -> Iterator[None]:
    """Sets the algorithm of all layers to None within it.

    Layers with a choice would measure algorithms for the batch of this trace.
    """
    layers = [
        layer
        for layer in (model, *layers_of(model))
        if getattr(layer, "algorithm", None) is not None
    ]
    before = [layer.algorithm for layer in layers]
    for layer in layers:
        layer.algorithm = None
    try:
        yield
    finally:
        for layer, algorithm in zip(layers, before, strict=True):
            layer.algorithm = algorithm


@contextlib.contextmanager
def _marked(model: Any) -> Iterator[None]:
    """Puts each layer's place into the names of its operations.

    Keras puts the layer's name there, but TensorFlow numbers what would be
    named twice, and that may be the name of another layer.
    """
    import tensorflow as tf

    layers = layers_of(model)
    # Calls are set in these, past Keras' `__setattr__`, which would track them.
    spaces = [vars(layer) for layer in layers]

    def mark(call: Callable[..., Any], place: int) -> Callable[..., Any]:
        @functools.wraps(call)
        def marked(*args: Any, **kwargs: Any) -> Any:
            with tf.name_scope(f"{_MARK}{place}"):
                return call(*args, **kwargs)

        return marked

    try:
        for place, (layer, space) in enumerate(
            zip(layers, spaces, strict=True)
        ):
            space["call"] = mark(layer.call, place)
        yield
    finally:
        for space in spaces:
            space.pop("call", None)


def _layer(operation: str) -> int | None:
    places = re.findall(re.escape(_MARK) + r"(\d+)", operation)
    return int(places[-1]) if places else None


class _Reader:
    """Notes one operation after the other, for a `StepGraph`."""

    def __init__(self) -> None:
        self.sizes: list[Size] = []
        self.operations: list[TracedOperation] = []
        self.reads: dict[int, tuple[int, ...]] = {}
        self._tensors: dict[str, int] = {}
        self._places: dict[str, int] = {}
        # The tensor that max pooling keeps for its gradient, by its result.
        self._notes: dict[int, int] = {}

    def take(self, op: Any, part: int) -> None:
        """Notes an operation.

        Args:
            op: The operation.
            part: 0 for the forward pass, 1 for gradients, 2 for the update.
        """
        read = [self._tensors[tensor.name] for tensor in op.inputs]
        same = read if op.type in _ALIASES else _factors_of_one(op, read)
        if same:
            # Such an operation need not be noted: to wait for it is to wait for
            # the one that makes its argument.
            for output, tensor in zip(op.outputs, same, strict=False):
                self._tensors[output.name] = tensor
            return
        outputs = []
        for output in op.outputs:
            size = Size(0, 0) if op.type in _FREE else _size(output)
            self._tensors[output.name] = self._new(size)
            outputs.append(self._tensors[output.name])
        if op.type == "ReadVariableOp":
            before = self.reads.get(read[0], ())
            self.reads[read[0]] = (*before, outputs[0])
        elif op.type == "MaxPool":
            note = _size(op.outputs[0], each=1)
            self._notes[outputs[0]] = self._new(note)
            outputs.append(self._notes[outputs[0]])
        elif op.type == "MaxPoolGrad" and read[1] in self._notes:
            read.append(self._notes[read[1]])
        after = [
            self._places[before.name]
            for before in op.control_inputs
            if before.name in self._places
        ]
        self._places[op.name] = len(self.operations)
        self.operations.append(
            TracedOperation(
                op.name,
                op.type,
                _layer(op.name),
                part > 0,
                part > 1,
                tuple(dict.fromkeys(read)),
                tuple(outputs),
                tuple(after),
            )
        )

    def _new(self, size: Size) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1


def _factors_of_one(op: Any, read: list[int]) -> list[int]:
    """The tensor that is multiplied by 1, if `op` does so.

    TensorFlow leaves such a product out. There is one in a silu.
    """
    import tensorflow as tf

    if op.type != "Mul":
        return []
    for factor, other in zip(op.inputs, reversed(read), strict=True):
        if factor.op.type == "Const" and factor.shape.rank == 0:
            value = tf.get_static_value(factor)
            if value is not None and value == 1:
                return [other]
    return []


def _count() -> int:
    """Number of operations in the graph that is being traced."""
    import tensorflow as tf

    return len(tf.compat.v1.get_default_graph().get_operations())


def _needed(operations: list[Any]) -> list[Any]:
    """The operations that an update of a variable waits for.

    TensorFlow does not run others, such as the gradient of the images.
    """
    wanted = set()
    for op in reversed(operations):
        if "Assign" in op.type or op.name in wanted:
            wanted.add(op.name)
            wanted.update(t.op.name for t in op.inputs)
            wanted.update(before.name for before in op.control_inputs)
    return [op for op in operations if op.name in wanted]


def _values(tensor: Any) -> int:
    """Number of values in a tensor; 0 where its shape is unknown."""
    shape = tensor.shape
    return 0 if shape.num_elements() is None else int(shape.num_elements())


def _size(tensor: Any, each: int | None = None) -> Size:
    """Size of a tensor, with `each` bytes a value; None for its dtype's."""
    if each is None:
        # Handles and strings have no size that matters.
        each = 0 if tensor.dtype in _handles() else int(tensor.dtype.size)
    size, power = _values(tensor) * each, 0
    while size and size % _MANY == 0:
        size, power = size // _MANY, power + 1
    return Size(size, power)


def _handles() -> tuple[Any, ...]:
    import tensorflow as tf

    return (tf.resource, tf.variant, tf.string)


def is_in_place(operation: TracedOperation) -> bool:
    """Whether an operation may write over an argument nothing else needs."""
    return operation.kind in _IN_PLACE
