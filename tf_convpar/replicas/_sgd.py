"""Data parallelism and parameter servers."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf_convpar.placement import gradient_pieces
from tf_convpar.replicas._arrivals import ServerProtocol
from tf_convpar.replicas._engines import Asynchronous
from tf_convpar.replicas._engines import Synchronous
from tf_convpar.replicas._gradient_rounds import GradientRounds
from tf_convpar.replicas._method import Method
from tf_convpar.replicas._momentum import WithMomentum
from tf_convpar.replicas.centre import Centre
from tf_convpar.replicas.replica import PackedState
from tf_convpar.replicas.wire import Wire
from tf_convpar.replicas.wire import wire_of


class _AtCentre(Method):
    """The model's optimizer steps at the centre; replicas send gradients."""

    def _replica_optimizer(self) -> Any:
        return None

    def _centre_optimizer(self) -> Any:
        return self._optimizer()


class SyncSGD(_AtCentre, Synchronous):
    """Data parallelism: one step with the gradient of all replicas' batches.

    ```python
    SyncSGD(model).fit(x, y, batch_size=64, epochs=3)
    ```

    `W <- W - eta sum_i (b_i / b) dW^i`: the numbers of one device with the
    whole batch, for models whose layers look at each sample alone. Batch
    normalization sees each replica's samples only.

    The centre is in pieces on all replicas' devices: each adds the gradients
    of its pieces, steps them, and sends them to all (reduce-scatter,
    all-gather), one after another while the backward pass goes on. With
    `global_clipnorm` it is on the first, which sees all of the gradient.

    With few bits on the wire the centre's weights stay whole. Gradients are
    rounded as they leave, and so is how far the weights have moved; what
    rounding loses is added to the next.

    Args:
        model: A Keras model, built and compiled.
        wire: `"float32"` for gradients and weights as they are,
            `"bfloat16"` for half of the bytes, `"int8"` or `"int4"`, which
            have a scale for each 256 values.
        **kwargs: As for all methods.
    """

    def __init__(
        self, model: keras.Model, wire: str = "float32", **kwargs: Any
    ) -> None:
        super().__init__(model, **kwargs)
        self._wire = wire_of(wire)

    def _wire_of_steps(self) -> Wire:
        return self._wire

    def _centre_of(self, form: PackedState) -> Centre:
        # A norm of all weights is of one piece.
        if self.model.optimizer.global_clipnorm is not None:
            return super()._centre_of(form)
        sizes, owners = gradient_pieces(
            form.weights.sizes,
            tf.as_dtype(form.weights.dtype).size,
            self.devices,
        )
        return Centre(form, owners, self._centre_optimizer(), sizes)

    def _centre_devices(self) -> list[str]:
        return self.devices[:1]

    def _make_anew(self) -> None:
        if not self._wire.is_exact:
            # By how far these move is all that replicas get to know of it.
            weights = self._there().value()
            for replica in self.replicas:
                replica.weights.assign(weights)
        super()._make_anew()

    def _rounds(self) -> GradientRounds:
        return GradientRounds(
            self.replicas, self._there(), self.chief, self._wire
        )


class AsyncSGD(_AtCentre, Asynchronous):
    """A parameter server: gradients are applied as they come.

    ```python
    AsyncSGD(model).fit(x, y, batch_size=64, epochs=3)
    ```

    `W <- W - eta dW^i`, under a lock, and the replica goes on from `W`.
    Section 5.1 of You, Buluc and Demmel (SC17); Dean et al. (2012).
    """

    def _protocol(self) -> ServerProtocol:
        return ServerProtocol(self._there())


class AsyncMSGD(WithMomentum, AsyncSGD):
    """A parameter server with momentum: equations (3) and (4).

    ```python
    AsyncMSGD(model, momentum=0.9).fit(x, y, batch_size=64, epochs=3)
    ```

    Args:
        model: A Keras model, compiled with `SGD`.
        momentum: `mu`.
        **kwargs: As for all methods.
    """


class HogwildSGD(AsyncSGD):
    """A parameter server without a lock.

    ```python
    HogwildSGD(model).fit(x, y, batch_size=64, epochs=3)
    ```

    Recht et al. (2011), with replicas for threads.
    """

    _locked = False
