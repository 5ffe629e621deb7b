"""Which tensors of a step are in memory at once, and how much that is.

Goes through a `StepGraph` as TensorFlow's executor does: an operation runs
when all that it waits for has run, the first that became ready first, except
that what updates a weight goes on as soon as its gradient is there (it runs
on in the thread that made the gradient). Results take memory of their own,
unless they may be written over an argument that nothing else needs any more;
an argument is freed after the last operation that reads it. So what is kept
for the gradients is what the gradients read, and no rule is needed for any
kind of layer.

One operation runs after the other here. With several threads TensorFlow runs
those of two branches at once, and what both read, neither is written over:
that may take more.

Three things are as found in TensorFlow's kernels (2.21, on a CPU):

- An update of a variable that some operation still has to read takes new
  memory, and the old is freed after the last of them.
- Max pooling notes, for its gradient, one byte for each of its results.
- The memory of variables, constants and inputs is there before the step; it
  is counted by whoever calls this.
"""

from __future__ import annotations

import collections
import dataclasses

from tf_convpar.estimate.memory._graph import Operation
from tf_convpar.estimate.memory._graph import StepGraph
from tf_convpar.estimate.memory._graph import is_in_place


@dataclasses.dataclass(frozen=True)
class Live:
    """At the moment when results take most.

    Attributes:
        bytes: Of them.
        operation: The one that runs.
        forward_bytes: Of `bytes`, what the forward pass made.
        backward_bytes: What gradients and updates made.
    """

    bytes: int
    operation: Operation
    forward_bytes: int
    backward_bytes: int


def most_live(graph: StepGraph, batch: int) -> Live:
    """The results that are in memory at once, where they are most."""
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


def kept(graph: StepGraph) -> dict[int, Operation]:
    """Tensors that gradients read, with the forward operation of each."""
    made = {
        tensor: operation
        for operation in graph.operations
        if not operation.is_backward
        for tensor in operation.outputs
    }
    return {
        tensor: made[tensor]
        for operation in graph.operations
        if operation.is_backward
        for tensor in operation.inputs
        if tensor in made
    }


def _order(graph: StepGraph) -> list[int]:
    """Operations as they become ready, updates before all others."""
    operations = graph.operations
    maker = {t: i for i, o in enumerate(operations) for t in o.outputs}
    followers = collections.defaultdict(list)
    waits = []
    for index, operation in enumerate(operations):
        before = {maker[t] for t in operation.inputs} | set(operation.after)
        waits.append(len(before))
        for other in before:
            followers[other].append(index)
    # Gradients of weights, before the gradient of the input next to them.
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
        # One after the other in front of what waits already, or behind it.
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


# Of a tensor that does not exist: not yet, or no longer.
_NEVER = (-1, False)


class _Run:
    """The memory of one step, operation by operation."""

    def __init__(self, graph: StepGraph, batch: int) -> None:
        self._graph = graph
        self._size = [size.at(batch) for size in graph.sizes]
        self._readers = collections.Counter(
            t for operation in graph.operations for t in operation.inputs
        )
        # Bytes of tensors in memory, and whether gradients made them.
        self._live: dict[int, tuple[int, bool]] = {}
        self._sums = [0, 0]

    def execute(self, index: int) -> tuple[int, int]:
        """Bytes of the forward and of the backward pass while it runs."""
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

    def _make(self, operation: Operation) -> None:
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
                # It goes on to read the old memory.
                self._add(tensor, self._size[value], True)
                return

    def _add(self, tensor: int, size: int, backward: bool) -> None:
        self._live[tensor] = (size, backward)
        self._sums[backward] += size

    def _free(self, tensor: int) -> None:
        size, backward = self._live.pop(tensor, (0, False))
        self._sums[backward] -= size
