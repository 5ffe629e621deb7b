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
from tf_convpar.placement import ordered_sum
from tf_convpar.replicas._rounds import Rounds
from tf_convpar.replicas.centre import Centre
from tf_convpar.replicas.replica import Replica
from tf_convpar.replicas.wire import Wire


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
        for j, gradients_of_piece in enumerate(zip(*pieces, strict=True)):
            total = self._exchange.at_owner(j, gradients_of_piece)
            self.centre.descend(total, eta, j)
            arrived.append(self._exchange.to_replicas(j, before[j]))
        for replica, weights in zip(
            self.replicas, zip(*arrived, strict=True), strict=True
        ):
            replica.assign_pieces(weights, sizes)


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

    def weights(self) -> list[Sequence[tf.Tensor]]:
        """For each piece all replicas' weights; none if they are not needed."""
        return [()] * len(self.centre.sizes)

    @abc.abstractmethod
    def at_owner(self, piece: int, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """The sum of all replicas' gradients of a piece, at its owner."""

    @abc.abstractmethod
    def to_replicas(
        self, piece: int, before: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Each replica's weights after the step of a piece.

        Args:
            piece: Number of the piece of the centre, which has stepped.
            before: Each replica's weights before, as `weights` gives them.
        """


class Exact(_Exchange):
    """Gradients and weights as they are."""

    def at_owner(self, piece: int, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """Added in the order of the replicas."""
        with tf.device(self.centre.devices[piece]):
            return ordered_sum(*gradients)

    def to_replicas(
        self, piece: int, before: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Those of the centre."""
        owner = self.centre.devices[piece]
        return broadcast(self.centre.piece(piece), self._devices, owner)


class Coded(_Exchange):
    """In few bits: gradients, and how far the weights have to go.

    All replicas, those of the owners too, have the same weights. They begin as
    the centre's, and differ from these by what rounding has left, which each
    message brings up to date.

    A message is added to what is there as it is decoded: the weights of a
    model do not fit into caches, and going over them once more takes as long
    as coding them.
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
        # The replica that is where each piece's owner is.
        self._holders = [self._devices.index(o) for o in centre.devices]

    def restart(self) -> None:
        """Forgets what rounding has left of gradients."""
        for left in self._left.values():
            with tf.device(left.device):
                left.assign(tf.zeros(left.shape))

    def weights(self) -> list[Sequence[tf.Tensor]]:
        """For each piece all replicas' weights."""
        sizes = self.centre.sizes
        pieces = [r.weights_in_pieces(sizes) for r in self.replicas]
        return list(zip(*pieces, strict=True))

    def at_owner(self, piece: int, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """The owner's own, and all others rounded on their way."""
        owner, size = self.centre.devices[piece], self.centre.sizes[piece]
        total = gradients[self._holders[piece]]
        for i, (device, gradient) in enumerate(
            zip(self._devices, gradients, strict=True)
        ):
            if device == owner:
                continue
            with tf.device(device):
                message = self.wire.encode(gradient, self._left[i, piece])
            with tf.device(owner):
                total = self.wire.decode(
                    tf.identity(message), size, added_to=total
                )
        return total

    def to_replicas(
        self, piece: int, before: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Those of before, moved to the centre's as the message says."""
        owner, size = self.centre.devices[piece], self.centre.sizes[piece]
        now = self.centre.piece(piece)
        with tf.device(owner):
            message = self.wire.encode(now, less=before[self._holders[piece]])
        weights = []
        copies = broadcast(message, self._devices, owner)
        for device, copy, value in zip(
            self._devices, copies, before, strict=True
        ):
            with tf.device(device):
                weights.append(self.wire.decode(copy, size, added_to=value))
        return weights
