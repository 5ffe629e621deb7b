"""The elastic averaging family, after You, Buluc and Demmel (SC17)."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf_convpar.replicas._arrivals import ElasticProtocol
from tf_convpar.replicas._engines import Asynchronous
from tf_convpar.replicas._engines import InTurn
from tf_convpar.replicas._engines import Synchronous
from tf_convpar.replicas._method import Method
from tf_convpar.replicas._momentum import WithMomentum
from tf_convpar.replicas._rounds import ElasticRounds
from tf_convpar.replicas.wire import Wire
from tf_convpar.replicas.wire import wire_of

# P eta rho, as Zhang, Choromanska and LeCun (2015) recommend it.
_BETA = 0.9


class _Elastic(Method):
    """Replicas that a centre pulls at, with the force `rho`.

    Args:
        model: As for `Method`.
        rho: The elastic force; None for `0.9 / (P eta)`, whatever the rate and
            the number of replicas become. One replica alone then has no force:
            it learns as its optimizer would by itself.
        **kwargs: As for `Method`.

    Raises:
        ValueError: `P eta rho` is 1 or more: the centre would move beyond the
            average of its replicas, and away.
    """

    def __init__(
        self, model: keras.Model, rho: float | None = None, **kwargs: Any
    ) -> None:
        super().__init__(model, **kwargs)
        self.rho = rho if rho is None else float(rho)
        if self.rho is None:
            return
        eta, replicas = self._eta(), len(self.devices)
        if not (self.rho > 0 and self.rho * eta * replicas < 1):
            raise ValueError(
                "Expected rho with 0 < rho * learning rate * replicas < 1, "
                "where the centre moves towards the average of the replicas. "
                f"Received: rho={self.rho:g} * {eta:g} * {replicas} = "
                f"{self.rho * eta * replicas:g}."
            )

    def _alpha(self, eta: tf.Tensor) -> tf.Tensor | float | None:
        """`eta rho`, the part of their distance that both ends move.

        None for a replica alone, whose weights the centre has.
        """
        # Of the rate and the replicas that there are now: both may change.
        if self.rho is not None:
            return eta * self.rho
        replicas = len(self.devices)
        # There is nobody to agree with, and a pull would halve the rate.
        return _BETA / replicas if replicas > 1 else None


class SyncEASGD(Synchronous, _Elastic):
    """All replicas step and exchange at once; the same numbers every time.

    ```python
    SyncEASGD(model, rho=2.0).fit(x, y, batch_size=64, epochs=3)
    ```

    `W^i <- W^i - eta (dW^i + rho (W^i - Wc))` on each replica, and
    `Wc <- Wc + eta rho sum_i (W^i - Wc)`: equations (1) and (2), algorithms
    2 and 3 of the paper.

    Args:
        model: A Keras model, built and compiled.
        rho: The elastic force; None for `0.9 / (P eta)`.
        variant: 1, the centre on the chief; 2, on the first replica's device;
            3, there, and weights travel while gradients are computed.
        **kwargs: `devices`, `shares` and `seed`, as for all methods.
    """

    def __init__(
        self,
        model: keras.Model,
        rho: float | None = None,
        variant: int = 3,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, rho, **kwargs)
        if variant not in (1, 2, 3):
            raise ValueError(
                f"Expected variant 1, 2 or 3. Received: {variant!r}."
            )
        self.variant = variant

    def _wire_of_steps(self) -> Wire:
        return wire_of("float32")

    def _centre_devices(self) -> list[str]:
        return [self.chief if self.variant == 1 else self.devices[0]]

    def _rounds(self) -> ElasticRounds:
        return ElasticRounds(
            self.replicas,
            self._there(),
            self.chief,
            self._alpha,
            overlap=self.variant == 3,
        )


class AsyncEASGD(Asynchronous, _Elastic):
    """Each replica exchanges when it has stepped; first come, first served.

    ```python
    AsyncEASGD(model).fit(x, y, batch_size=64, epochs=3)
    ```

    Equation (1) on the replica; `Wc <- Wc + eta rho (W^i - Wc)`, under a lock,
    at the centre. Section 5.1 of the paper.
    """

    def _protocol(self) -> ElasticProtocol:
        return ElasticProtocol(self._there(), self._alpha)


class AsyncMEASGD(WithMomentum, AsyncEASGD):
    """Asynchronous EASGD whose replicas have momentum: equations (5), (6).

    ```python
    AsyncMEASGD(model, momentum=0.9).fit(x, y, batch_size=64, epochs=3)
    ```

    Args:
        model: A Keras model, compiled with `SGD`.
        momentum: `mu`.
        **kwargs: `rho`, the elastic force (None for `0.9 / (P eta)`), and
            what all methods take.
    """


class HogwildEASGD(AsyncEASGD):
    """Asynchronous EASGD without the lock: several fold in at once.

    ```python
    HogwildEASGD(model).fit(x, y, batch_size=64, epochs=3)
    ```
    """

    _locked = False


class RoundRobinEASGD(InTurn, _Elastic):
    """The original EASGD: one replica after another, in order of rank.

    ```python
    RoundRobinEASGD(model).fit(x, y, batch_size=64, epochs=3)
    ```

    Algorithm 1 of the paper: only one replica works at a time, so that this
    is a baseline and not a way to train.

    Args:
        model: A Keras model, built and compiled.
        rho: The elastic force; None for `0.9 / (P eta)`.
        packed: Whether weights travel in one message, which is the paper's
            own improvement (section 5.2). False sends those of each variable
            in one of their own, one after another, as the original did.
        **kwargs: `devices`, `shares` and `seed`, as for all methods.
    """

    def __init__(
        self,
        model: keras.Model,
        rho: float | None = None,
        packed: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, rho, **kwargs)
        self.packed = packed

    def _protocol(self) -> ElasticProtocol:
        return ElasticProtocol(self._there(), self._alpha)
