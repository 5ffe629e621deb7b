"""Rounds of SyncSGD: gradients are added in pieces, and weights come back.

    g   = sum_i (b_i / b) dW_i      sent to the piece's owner
    Wc  <- optimizer's step with g  there
    W^i <- Wc                       sent to all

With few bits on the wire (`Coded`) gradients are rounded on their way, and
what comes back is how far the weights have to go, which is small, rather than
the weights: rounding it to 2^-9 of itself rounds the weights to far less.
What is lost is sent with the next one (error feedback: Karimireddy et al.,
2019, arXiv 1901.09847).
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar.placement import broadcast
from tf_convpar.placement import on_device
from tf_convpar.placement import ordered_sum
from tf_convpar.replicas._centre import Centre
from tf_convpar.replicas._replica import Replica
from tf_convpar.replicas._rounds import Rounds
from tf_convpar.replicas._wire import Wire

# Of each replica, in the order of the centre's pieces.
Pieces = list[list[tf.Tensor]]


class GradientRounds(Rounds):
    """SyncSGD: the centre's pieces step with the gradient of the whole batch.

    A piece travels, steps and comes back as soon as all replicas have its
    gradient, while they compute the gradients of layers before it.
    A replica's gradient is the mean over its samples, so it counts by them.
    The paper prints the plain sum over replicas: `P` times the step.

    Args:
        replicas: As for `Rounds`.
        centre: As for `Rounds`.
        chief: As for `Rounds`.
        wire: How pieces travel.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        centre: Centre,
        chief: str,
        wire: Wire,
    ) -> None:
        super().__init__(replicas, centre, chief)
        form = Exact if wire.is_exact else Coded
        self._exchange: _Exchange = form(self.replicas, centre, wire)

    def restart(self) -> None:
        """Forgets what rounding has left."""
        self._exchange.restart()

    def _parts(self, samples: Sequence[int]) -> list[float]:
        return [count / sum(samples) for count in samples]

    def exchange(self, gradients: Sequence[list[Any]], eta: tf.Tensor) -> None:
        """`W <- W - eta sum_i (b_i / b) dW_i`, and every replica has W."""
        sizes = self.centre.sizes
        pieces = [
            replica.in_pieces(gradient, sizes)
            for replica, gradient in zip(self.replicas, gradients, strict=True)
        ]
        before = self._exchange.weights()
        arrived = []
        for j, owner in enumerate(self.centre.devices):
            parts = [
                self._exchange.at_owner(i, j, of_replica[j])
                for i, of_replica in enumerate(pieces)
            ]
            with tf.device(owner):
                total = ordered_sum(*parts)
            self.centre.descend(total, eta, j)
            arrived.append(self._exchange.to_replicas(j, before))
        self._exchange.update(
            [list(of) for of in zip(*arrived, strict=True)], before
        )


class _Exchange(abc.ABC):
    """How pieces of gradients reach their owners, and the weights all others.

    Args:
        replicas: Each with its share of the batch.
        centre: Its pieces' devices are the owners.
        wire: How pieces travel.
    """

    def __init__(
        self, replicas: Sequence[Replica], centre: Centre, wire: Wire
    ) -> None:
        self.replicas, self.centre, self.wire = replicas, centre, wire
        self._devices = [replica.device for replica in replicas]

    def restart(self) -> None:  # noqa: B027 (what is exact leaves nothing)
        """Forgets what rounding has left."""

    def weights(self) -> Pieces:
        """The weights of each replica, where they are needed."""
        return []

    @abc.abstractmethod
    def at_owner(
        self, index: int, piece: int, gradient: tf.Tensor
    ) -> tf.Tensor:
        """A replica's piece of the gradient, as its owner gets it."""

    @abc.abstractmethod
    def to_replicas(self, piece: int, before: Pieces) -> list[tf.Tensor]:
        """What each replica gets of a piece of the centre that has stepped."""

    @abc.abstractmethod
    def update(self, arrived: Pieces, before: Pieces) -> None:
        """Replaces the weights of replicas by what each has got."""


class Exact(_Exchange):
    """Gradients and weights as they are."""

    def at_owner(
        self, index: int, piece: int, gradient: tf.Tensor
    ) -> tf.Tensor:
        """As it is."""
        return gradient

    def to_replicas(self, piece: int, before: Pieces) -> list[tf.Tensor]:
        """The weights themselves."""
        owner = self.centre.devices[piece]
        return broadcast(self.centre.piece(piece), self._devices, owner)

    def update(self, arrived: Pieces, before: Pieces) -> None:
        """They replace those of before."""
        for replica, pieces in zip(self.replicas, arrived, strict=True):
            replica.assign_pieces(pieces, self.centre.sizes)


class Coded(_Exchange):
    """In few bits: gradients, and how far the weights have to go.

    All replicas, those of the owners too, have the same weights. They begin as
    the centre's, and differ from these by what rounding has left, which each
    message brings up to date.
    """

    def __init__(
        self, replicas: Sequence[Replica], centre: Centre, wire: Wire
    ) -> None:
        super().__init__(replicas, centre, wire)
        # What rounding has left of the gradients that a replica has sent.
        self._left: dict[tuple[int, int], tf.Variable] = {}
        for i, device in enumerate(self._devices):
            for j, owner in enumerate(centre.devices):
                if device != owner:
                    with tf.device(device):
                        left = tf.Variable(tf.zeros([centre.sizes[j]]))
                    self._left[i, j] = left
        # Where each piece's owner has a replica, and that replica's weights.
        self._holders = [self._devices.index(o) for o in centre.devices]

    def restart(self) -> None:
        """Forgets what rounding has left of gradients."""
        for left in self._left.values():
            with tf.device(left.device):
                left.assign(tf.zeros(left.shape))

    def at_owner(
        self, index: int, piece: int, gradient: tf.Tensor
    ) -> tf.Tensor:
        """Rounded on its way, unless it is its owner's own."""
        left = self._left.get((index, piece))
        if left is None:
            return gradient
        size = self.centre.sizes[piece]
        with tf.device(self._devices[index]):
            message = self.wire.encode(tf.cast(gradient, tf.float32), left)
        with tf.device(self.centre.devices[piece]):
            arrived = self.wire.decode(tf.identity(message), size)
            return tf.cast(arrived, gradient.dtype)

    def weights(self) -> Pieces:
        """The weights of each replica."""
        sizes = self.centre.sizes
        return [replica.weights_in_pieces(sizes) for replica in self.replicas]

    def to_replicas(self, piece: int, before: Pieces) -> list[tf.Tensor]:
        """How far replicas' weights are from the centre's."""
        owner, size = self.centre.devices[piece], self.centre.sizes[piece]
        now = self.centre.piece(piece)
        with tf.device(owner):
            difference = now - before[self._holders[piece]][piece]
            message = self.wire.encode(tf.cast(difference, tf.float32))

        def moved(coded: tf.Tensor) -> tf.Tensor:
            return tf.cast(self.wire.decode(coded, size), now.dtype)

        copies = broadcast(message, self._devices, owner)
        return [
            on_device(moved, device)(copy)
            for device, copy in zip(self._devices, copies, strict=True)
        ]

    def update(self, arrived: Pieces, before: Pieces) -> None:
        """Replicas' weights go as far."""
        for replica, moved, weights in zip(
            self.replicas, arrived, before, strict=True
        ):
            with tf.device(replica.device):
                pieces = [a + b for a, b in zip(weights, moved, strict=True)]
            replica.assign_pieces(pieces, self.centre.sizes)
