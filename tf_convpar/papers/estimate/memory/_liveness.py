"""Which tensors of a step are in memory at once, and how much that is.

This goes through a `StepGraph` as TensorFlow's executor does. An operation runs
when all that it waits for has run, and the first that became ready runs first.
An update of a weight is an exception: it runs as soon as its gradient is there,
in the thread that made the gradient. Results take memory of their own, unless
they may be written over an argument that nothing else needs any more. An
argument is freed after the last operation that reads it. So what is kept for
the gradients is what the gradients read, and no rule is needed for any kind of
layer.

One operation runs after the other here. With several threads TensorFlow runs
operations of two branches at once, and neither may write over what both read:
that may take more memory.

Three things are as found in TensorFlow's kernels (2.21, on a CPU):

- An update of a variable that some operation still has to read takes new
  memory, and the old memory is freed after the last of those operations.
- Max pooling notes, for its gradient, one byte for each of its results.
- The memory of variables, constants and inputs is there before the step; the
  caller counts it.
"""

from __future__ import annotations

import collections
import dataclasses

from tf_convpar.papers.estimate.memory._graph import StepGraph
from tf_convpar.papers.estimate.memory._graph import TracedOperation
from tf_convpar.papers.estimate.memory._graph import is_in_place


@dataclasses.dataclass(frozen=True)
class Live:
    """Memory at the moment when the results of operations take most of it.

    Attributes:
        bytes: Bytes of all results in memory.
        operation: The operation that runs at that moment.
        forward_bytes: The part of `bytes` that the forward pass made.
        backward_bytes: The part of `bytes` that gradients and updates made.
    """

    bytes: int
    operation: TracedOperation
    forward_bytes: int
    backward_bytes: int


def most_live(graph: StepGraph, batch: int) -> Live:
    """The memory of results at the moment when they take most of it.

    Args:
        graph: The step.
        batch: Number of images.
    """
    run = _Run(graph, batch)
    best = Live(0, graph.operations[0], 0, 0)
    for index in _order(graph):
        forward, backward = run.execute(index)
        if forward + backward > best.bytes:
            best = Live(
                forward + backward,
                graph.operations[index],
                forward,
                backward,
            )
    return best


def kept(graph: StepGraph) -> dict[int, TracedOperation]:
    """The tensors that gradients read, with the operation that made each."""
    made_by = {
        tensor: operation
        for operation in graph.operations
        if not operation.is_backward
        for tensor in operation.outputs
    }
    return {
        tensor: made_by[tensor]
        for operation in graph.operations
        if operation.is_backward
        for tensor in operation.inputs
        if tensor in made_by
    }


def _order(graph: StepGraph) -> list[int]:
    """Indices of the operations in the order in which they run.

    They run as they become ready, but updates run before all others.
    """
    operations = graph.operations
    maker = {t: i for i, o in enumerate(operations) for t in o.outputs}
    followers = collections.defaultdict(list)
    waits = []
    for index, operation in enumerate(operations):
        before = {maker[t] for t in operation.inputs} | set(operation.after)
        waits.append(len(before))
        for other in before:
            followers[other].append(index)
    # Gradients of weights run before the gradient of the input beside them.
    updating = {t for o in operations if o.is_update for t in o.inputs}
    for_update = {
        i
        for i, o in enumerate(operations)
        if not updating.isdisjoint(o.outputs)
    }
    ready = collections.deque(i for i, n in enumerate(waits) if not n)
    order = []
    while ready:
        index = ready.popleft()
        order.append(index)
        # Updates go before what is ready already, others go behind it.
        updates: list[int] = []
        others: list[int] = []
        for follower in followers[index]:
            waits[follower] -= 1
            if not waits[follower]:
                update = operations[follower].is_update
                (updates if update else others).append(follower)
        ready.extendleft(reversed(updates))
        ready.extend(sorted(others, key=lambda i: i not in for_update))
    return order


# Bytes, and whether gradients made it, of a tensor that is not in memory.
_NEVER = (-1, False)


class _Run:
    """The memory of one step, operation by operation."""

    def __init__(self, graph: StepGraph, batch: int) -> None:
        self._graph = graph
        self._size = [size.at(batch) for size in graph.sizes]
        self._readers = collections.Counter(
            t for operation in graph.operations for t in operation.inputs
        )
        # For each tensor in memory, its bytes and whether gradients made it.
        self._live: dict[int, tuple[int, bool]] = {}
        self._sums = [0, 0]

    def execute(self, index: int) -> tuple[int, int]:
        """Runs an operation; the bytes in memory while it runs.

        Returns:
            Bytes that the forward pass made, and those that gradients and
            updates made.
        """
        operation = self._graph.operations[index]
        self._make(operation)
        during = (self._sums[0], self._sums[1])
        for tensor in operation.outputs:
            if not self._readers[tensor]:
                self._free(tensor)
        for tensor in operation.inputs:
            self._readers[tensor] -= 1
            if not self._readers[tensor]:
                self._free(tensor)
        return during

    def _make(self, operation: TracedOperation) -> None:
        if is_in_place(operation):
            size = self._size[operation.outputs[0]]
            for tensor in operation.inputs:
                if (
                    self._readers[tensor] == 1
                    and self._live.get(tensor, _NEVER)[0] == size
                ):
                    self._free(tensor)
                    break
        for tensor in operation.outputs:
            self._add(tensor, self._size[tensor], operation.is_backward)
        if "Assign" in operation.kind:
            self._update(*operation.inputs[:2])

    def _update(self, variable: int, value: int) -> None:
        for tensor in self._graph.reads.get(variable, ()):
            size, _ = self._live.get(tensor, _NEVER)
            if self._readers[tensor] and size == 0:
                # Its readers go on to read the old memory.
                self._add(tensor, self._size[value], True)
                return

    def _add(self, tensor: int, size: int, backward: bool) -> None:
        self._live[tensor] = (size, backward)
        self._sums[backward] += size

    def _free(self, tensor: int) -> None:
        size, backward = self._live.pop(tensor, (0, False))
        self._sums[backward] -= size
