"""Rounds: all replicas step at once, then exchange, in one graph.

What is computed where is written down once for all replicas, and TensorFlow
runs each part on its device as soon as what it needs is there. So what does
not depend on gradients, as the sum of weights from before the step, travels
while gradients are computed, unless it is told to wait.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar.cluster.joining import step
from tf_convpar.placement import on_device
from tf_convpar.placement import tree_copies
from tf_convpar.placement import tree_sum
from tf_convpar.replicas import _equations
from tf_convpar.replicas.centre import Centre
from tf_convpar.replicas.replica import Replica

# `eta rho` of a learning rate; None where a replica is alone.
Alpha = Callable[[tf.Tensor], tf.Tensor | float | None]


class Rounds(abc.ABC):
    """One round after another, each a call of one function.

    Args:
        replicas: Each with its share of the batch.
        centre: Theirs.
        chief: Device of the program, which gets what is logged.
    """

    def __init__(
        self, replicas: Sequence[Replica], centre: Centre, chief: str
    ) -> None:
        self.replicas = list(replicas)
        self.centre = centre
        self.chief = chief
        self._function = tf.function(self._rounds, autograph=False)

    def run(self, eta: float, data: Sequence[Sequence[Any]]) -> Any:
        """Some rounds, in one call.

        Args:
            eta: The learning rate.
            data: For each round a batch for each replica, or its iterator.

        Returns:
            State of the metrics since the epoch began, summed over replicas.
        """
        # An iterator goes in once: TensorFlow keeps the order of reads of one
        # argument, not of several that are the same.
        fed = [
            of[0] if isinstance(of[0], tf.data.Iterator) else list(of)
            for of in zip(*data, strict=True)
        ]
        with step():
            return self._function(tf.constant(eta, tf.float32), fed, len(data))

    def restart(self) -> None:  # noqa: B027 (most have no memory)
        """Forgets what earlier steps have left, as `fit` begins."""

    @abc.abstractmethod
    def exchange(self, gradients: Sequence[list[Any]], eta: tf.Tensor) -> None:
        """What follows the gradients of all replicas: the method's rule."""

    def _rounds(self, eta: tf.Tensor, data: Any, rounds: int) -> tf.Tensor:
        for i in range(rounds):
            fed = [d if isinstance(d, tf.data.Iterator) else d[i] for d in data]
            self._round(eta, fed)
        return tree_sum(
            [
                on_device(tf.identity, r.device)(r.metrics.read_value())
                for r in self.replicas
            ],
            [r.device for r in self.replicas],
            self.chief,
        )

    def _round(self, eta: tf.Tensor, data: Any) -> None:
        batches = [
            r.taken(source)
            for r, source in zip(self.replicas, data, strict=True)
        ]
        samples = [keras.tree.flatten(b)[0].shape[0] for b in batches]
        gradients = [
            r.gradient(b, part)
            for r, b, part in zip(
                self.replicas, batches, self._parts(samples), strict=True
            )
        ]
        self.exchange(gradients, eta)

    def _parts(self, samples: Sequence[int]) -> list[float]:
        """What each replica's gradient counts, by the samples of each."""
        return [1.0] * len(samples)

    def _after(
        self, vectors: Sequence[tf.Tensor], first: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """The same vectors, each only once all of `first` are there."""
        held = []
        for vector, replica in zip(vectors, self.replicas, strict=True):
            with tf.device(replica.device), tf.control_dependencies(first):
                held.append(tf.identity(vector))
        return held


class ElasticRounds(Rounds):
    """SyncEASGD: all pull at the centre, and it at all of them.

    Args:
        replicas: As for `Rounds`.
        centre: As for `Rounds`.
        chief: As for `Rounds`.
        alpha: `eta rho` of a learning rate; None for a replica alone.
        overlap: Whether weights travel while gradients are computed.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        centre: Centre,
        chief: str,
        alpha: Alpha,
        overlap: bool,
    ) -> None:
        super().__init__(replicas, centre, chief)
        self.alpha = alpha
        self.overlap = overlap

    def exchange(self, gradients: Sequence[list[Any]], eta: tf.Tensor) -> None:
        """Algorithms 2 and 3 of the paper, from line 10 on."""
        alpha = self.alpha(eta)
        if alpha is None:
            (replica,) = self.replicas
            replica.descend(gradients[0], eta)
            self.centre.assign(replica.weights.value)
            return
        devices = [r.device for r in self.replicas]
        before = [
            on_device(tf.identity, r.device)(r.weights.value)
            for r in self.replicas
        ]
        weights = before
        centre = self.centre.value()
        if not self.overlap:
            first = tf.nest.flatten(gradients, expand_composites=True)
            weights = self._after(weights, first)
            with (
                tf.device(self.centre.device),
                tf.control_dependencies(first),
            ):
                centre = tf.identity(centre)
        copies = tree_copies(centre, devices, self.centre.device)
        total = tree_sum(weights, devices, self.centre.device)
        for replica, gradient, weights_before, copy in zip(
            self.replicas, gradients, before, copies, strict=True
        ):
            replica.descend(gradient, eta)
            replica.pull(weights_before, copy, alpha)
        with tf.device(self.centre.device):
            self.centre.assign(
                _equations.centred(centre, total, len(self.replicas), alpha)
            )


class AloneRounds(Rounds):
    """Parallel SGD: each replica learns from its data, nothing is sent."""

    def exchange(self, gradients: Sequence[list[Any]], eta: tf.Tensor) -> None:
        """`W_i <- W_i - eta dW_i`."""
        for replica, gradient in zip(self.replicas, gradients, strict=True):
            replica.descend(gradient, eta)

    def average(self) -> None:
        """`Wc <- sum_i (b_i / b) W_i`: Zinkevich et al. (2010), algorithm 3.

        There replicas have as many samples as one another; where they do not,
        each counts by what it has learned from.
        """
        total = sum(r.batch for r in self.replicas)
        parts = []
        for replica in self.replicas:
            with tf.device(replica.device):
                parts.append(replica.weights.value * (replica.batch / total))
        devices = [r.device for r in self.replicas]
        self.centre.assign(tree_sum(parts, devices, self.centre.device))
