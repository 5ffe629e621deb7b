"""Downpour SGD, after Dean et al., *Large Scale Distributed Deep Networks*."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf_convpar.placement import check_pushes
from tf_convpar.replicas._arrivals import Protocol
from tf_convpar.replicas._engines import Asynchronous
from tf_convpar.replicas.centre import Centre
from tf_convpar.replicas.replica import Replica


class DownpourProtocol(Protocol):
    """Accumulated gradients there, weights back now and then.

    Args:
        centre: The centre.
        replicas: All of them.
        n_fetch: Steps of a replica from one fetch to the next.
        n_push: Steps from one push to the next; divides `n_fetch`.
    """

    def __init__(
        self, centre: Centre, replicas: list[Replica], n_fetch: int, n_push: int
    ) -> None:
        super().__init__(centre)
        self.steps = n_push
        self._n_fetch = n_fetch
        self._sums, self._counts = [], []
        for replica in replicas:
            with tf.device(replica.device):
                zeros = tf.zeros_like(replica.weights.value)
                self._sums.append(tf.Variable(zeros))
                self._counts.append(tf.Variable(0))

    def restart(self) -> None:
        """Every replica fetches first."""
        for total, count in zip(self._sums, self._counts, strict=True):
            total.assign(tf.zeros_like(total))
            count.assign(0)

    def quiet_step(
        self, replica: Replica, answer: tf.Tensor, eta: tf.Tensor, data: Any
    ) -> None:
        """`w <- w - eta dw` and `sum <- sum + dw`, with weights if fetched."""
        count, total = self._counts[replica.index], self._sums[replica.index]

        def fetch() -> tf.Tensor:
            replica.weights.assign(answer)
            return tf.identity(count)

        tf.cond(count % self._n_fetch == 0, fetch, lambda: tf.identity(count))
        count.assign_add(1)
        gradient = replica.gradient(data)
        total.assign_add(replica.packed(gradient))
        replica.descend(gradient, eta)

    def step(
        self, replica: Replica, answer: tf.Tensor, eta: tf.Tensor, data: Any
    ) -> tf.Tensor:
        """The same, and the sum is sent."""
        self.quiet_step(replica, answer, eta, data)
        total = self._sums[replica.index]
        message = tf.identity(total.read_value())
        with tf.control_dependencies([message]):
            total.assign(tf.zeros_like(message))
        return message

    def serve(self, message: tf.Tensor, eta: tf.Tensor) -> tf.Tensor:
        """Adagrad's step at the server; answers the new weights."""
        self.centre.descend(message, eta)
        return self.centre.value()


class DownpourSGD(Asynchronous):
    """Replicas step alone, push what they added up, and fetch now and then.

    ```python
    DownpourSGD(model, n_fetch=4, n_push=2).fit(x, y, epochs=3)
    ```

    Between exchanges a replica follows plain SGD with the learning rate of
    the model's optimizer. At the server an Adagrad of the same learning rate
    steps with the sum of gradients.

    Args:
        model: A Keras model, built and compiled.
        n_fetch: Steps of a replica from one fetch to the next.
        n_push: Steps from one push to the next; divides `n_fetch`.
        **kwargs: `devices`, `shares` and `seed`, as for all methods.

    Raises:
        ValueError: `n_push` does not divide `n_fetch`, or one is below 1.
    """

    def __init__(
        self,
        model: keras.Model,
        n_fetch: int = 1,
        n_push: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, **kwargs)
        check_pushes(n_fetch, n_push)
        self.n_fetch, self.n_push = n_fetch, n_push

    def _replica_optimizer(self) -> Any:
        return keras.optimizers.SGD(self._eta())

    def _centre_optimizer(self) -> Any:
        return keras.optimizers.Adagrad(self._eta())

    def _steps_each(self) -> int:
        return self.n_push

    def _protocol(self) -> DownpourProtocol:
        return DownpourProtocol(
            self._there(), self.replicas, self.n_fetch, self.n_push
        )
