"""Choices of algorithms for batches of unknown size."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar.algorithms import _choose
from tf_convpar.algorithms._algorithm import PASSES
from tf_convpar.algorithms._algorithm import Algorithm
from tf_convpar.algorithms._algorithm import Geometry
from tf_convpar.algorithms._decide import DIRECT
from tf_convpar.algorithms._names import Choice
from tf_convpar.algorithms._names import named
from tf_convpar.algorithms._workspace import Processor
from tf_convpar.ops import NOTHING
from tf_convpar.ops import Epilogue

# Batches that are measured where the batch is unknown, and the batches from
# which on the second and the third of them count.
BATCHES = (1, 8, 32)
_BEGINS = (4, 16)


def by_measurement(geometry: Geometry, device: str | None) -> Choice:
    """The fastest algorithm for each pass, whatever the batch turns out to be.

    Where the batch is unknown, a pass may have several algorithms, of which
    the batch selects one at run time. A batch for which that needs too much
    memory is direct.
    """
    if geometry.batch is not None:
        return _choose.choose(geometry, device)
    choices = [
        _choose.choose(dataclasses.replace(geometry, batch=batch), device)
        for batch in BATCHES
    ]
    fastest = (
        [choice.forward for choice in choices],
        [choice.input_gradient for choice in choices],
        [choice.kernel_gradient for choice in choices],
    )
    return Choice(
        *(
            _by_batch(algorithms, geometry, which, device)
            for algorithms, which in zip(fastest, PASSES, strict=True)
        )
    )


def _by_batch(
    fastest: Sequence[Algorithm],
    geometry: Geometry,
    which: str,
    device: str | None,
) -> Algorithm:
    """One algorithm for all batches, of those that are fastest at `BATCHES`."""
    direct = named(DIRECT, geometry)
    begins: list[int] = []
    algorithms: list[Algorithm] = []
    for begin, end, algorithm in zip(
        (0, *_BEGINS), (*_BEGINS, math.inf), fastest, strict=True
    ):
        largest = _choose.largest_batch(algorithm, geometry, which, device)
        parts = [(begin, algorithm)]
        if largest is not None and largest + 1 < end:
            parts.append((largest + 1, direct))
        for first, part in parts:
            if not algorithms or part.name != algorithms[-1].name:
                begins.append(first)
                algorithms.append(part)
    if len(algorithms) == 1:
        return algorithms[0]
    # Direct for want of memory is no choice.
    names = [algorithm.name for algorithm in fastest]
    name = names[0] if len(set(names)) == 1 else "|".join(names)
    return _ByBatch(name, algorithms, begins[1:])


class _ByBatch(Algorithm):
    """Runs one of several algorithms, selected by the batch at run time.

    Args:
        name: Its name.
        algorithms: The algorithms.
        begins: The batches from which on the second of them counts, the third,
            and so on.
    """

    def __init__(
        self, name: str, algorithms: Sequence[Algorithm], begins: Sequence[int]
    ) -> None:
        self.name = name
        self._algorithms = algorithms
        self._begins = begins

    def refuses(self, geometry: Geometry, which: str) -> str | None:
        for algorithm in self._algorithms:
            reason = algorithm.refuses(geometry, which)
            if reason is not None:
                return reason
        return None

    def forward(
        self,
        x: tf.Tensor,
        kernel: tf.Tensor,
        geometry: Geometry,
        epilogue: Epilogue = NOTHING,
    ) -> tf.Tensor:
        return self._switch(
            x,
            lambda algorithm: algorithm.forward(x, kernel, geometry, epilogue),
        )

    def input_gradient(
        self,
        dy: tf.Tensor,
        kernel: tf.Tensor,
        geometry: Geometry,
        input_shape: Any,
    ) -> tf.Tensor:
        return self._switch(
            dy,
            lambda algorithm: algorithm.input_gradient(
                dy, kernel, geometry, input_shape
            ),
        )

    def kernel_gradient(
        self, x: tf.Tensor, dy: tf.Tensor, geometry: Geometry
    ) -> tf.Tensor:
        return self._switch(
            x, lambda algorithm: algorithm.kernel_gradient(x, dy, geometry)
        )

    def multiplications(self, geometry: Geometry, which: str) -> int:
        return max(a.multiplications(geometry, which) for a in self._algorithms)

    def workspace(
        self, geometry: Geometry, which: str, on: Processor | None = None
    ) -> int:
        return max(a.workspace(geometry, which, on) for a in self._algorithms)

    def _switch(
        self, x: tf.Tensor, run: Callable[[Algorithm], tf.Tensor]
    ) -> tf.Tensor:
        batch = tf.shape(x)[0]
        index = tf.add_n([tf.cast(batch >= n, tf.int32) for n in self._begins])
        return tf.switch_case(
            index,
            [
                functools.partial(run, algorithm)
                for algorithm in self._algorithms
            ],
        )
