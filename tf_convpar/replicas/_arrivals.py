"""Arrivals: each replica goes on by itself, and the centre serves as they come.

A thread for each replica calls one function again and again: the replica's
device gets the centre's answer to the last message, computes, and sends the
next one. What the centre does with it is another function, on the centre's
device, with a lock around it or, in Hogwild methods, without.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import queue
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar.cluster.joining import step
from tf_convpar.placement import on_device
from tf_convpar.replicas import _equations
from tf_convpar.replicas._rounds import Alpha
from tf_convpar.replicas.centre import Centre
from tf_convpar.replicas.replica import Replica


@dataclasses.dataclass(frozen=True)
class Arrival:
    """A message of a replica at the centre.

    Attributes:
        replica: Index of the replica.
        staleness: Messages of others since the centre's last answer to it.
        seconds: From that answer to this one.
        metrics: State of the replica's metrics since the epoch began.
    """

    replica: int
    staleness: int
    seconds: float
    metrics: Any


class Protocol(abc.ABC):
    """What a replica does between two messages, and the centre with one.

    Args:
        centre: The centre.
    """

    # Steps of a replica for each message.
    steps = 1

    def __init__(self, centre: Centre) -> None:
        self.centre = centre

    def restart(self) -> None:  # noqa: B027 (few methods have such a state)
        """Forgets what replicas have not sent."""

    def quiet_step(  # noqa: B027 (few methods have such steps)
        self, replica: Replica, answer: tf.Tensor, eta: tf.Tensor, data: Any
    ) -> None:
        """A step after which nothing is sent, where there are several."""

    @abc.abstractmethod
    def step(
        self, replica: Replica, answer: tf.Tensor, eta: tf.Tensor, data: Any
    ) -> tf.Tensor:
        """The replica's part, on its device; returns its message."""

    @abc.abstractmethod
    def serve(self, message: tf.Tensor, eta: tf.Tensor) -> tf.Tensor:
        """The centre's part, on its device; returns its answer."""


class ElasticProtocol(Protocol):
    """Weights there, the centre back: asynchronous EASGD.

    Args:
        centre: The centre.
        alpha: `eta rho` of a learning rate; None for a replica alone.
    """

    def __init__(self, centre: Centre, alpha: Alpha) -> None:
        super().__init__(centre)
        self.alpha = alpha

    def step(
        self, replica: Replica, answer: tf.Tensor, eta: tf.Tensor, data: Any
    ) -> tf.Tensor:
        """Equation (1), or (6) if the optimizer has momentum."""
        before = tf.identity(replica.weights.value)
        replica.descend(replica.gradient(data), eta)
        alpha = self.alpha(eta)
        if alpha is not None:
            replica.pull(before, answer, alpha)
        return tf.identity(replica.weights.value)

    def serve(self, message: tf.Tensor, eta: tf.Tensor) -> tf.Tensor:
        """Equation (2) of one replica; answers what the centre was before."""
        centre, alpha = self.centre.value(), self.alpha(eta)
        self.centre.assign(
            message
            if alpha is None
            else _equations.centred(centre, message, 1, alpha)
        )
        return centre


class ServerProtocol(Protocol):
    """Gradients there, weights back: a parameter server."""

    def step(
        self, replica: Replica, answer: tf.Tensor, eta: tf.Tensor, data: Any
    ) -> tf.Tensor:
        """`dW` at the weights that the server answered."""
        replica.weights.assign(answer)
        return replica.packed(replica.gradient(data))

    def serve(self, message: tf.Tensor, eta: tf.Tensor) -> tf.Tensor:
        """`W <- W - eta dW`, or (3) and (4); answers the new weights."""
        self.centre.descend(message, eta)
        return self.centre.value()


class Arrivals:
    """Replicas that come and go, and the order in which they came.

    Args:
        replicas: Each with its data.
        centre: Theirs.
        protocol: What they do.
        chief: Device of the program.
        locked: Whether the centre serves one at a time.
        packed: Whether weights travel in one message. Else those of each
            variable have one of their own, each sent when the one before has
            arrived, as the original methods did.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        centre: Centre,
        protocol: Protocol,
        chief: str,
        locked: bool,
        packed: bool = True,
    ) -> None:
        self.replicas = list(replicas)
        self.centre = centre
        self.packed = packed
        self.protocol = protocol
        self.chief = chief
        self._lock: Any = threading.Lock() if locked else None
        self._count = threading.Lock()
        self._steps = [_traced(self._step_of(r)) for r in replicas]
        self._quiet_steps = [_traced(self._quiet_step_of(r)) for r in replicas]
        self._serve = _traced(self._served)
        self.restart()

    def restart(self) -> None:
        """Forgets all arrivals: every replica goes on from the centre."""
        self.served = 0
        self._answers = [self.centre.value() for _ in self.replicas]
        self._asked = [0 for _ in self.replicas]
        self.protocol.restart()

    def trace(self, eta: float, examples: Sequence[Any]) -> None:
        """Makes all functions: Keras' tracing is not safe for threads.

        Args:
            eta: The learning rate.
            examples: What a step of each replica gets.
        """
        rate = tf.constant(eta, tf.float32)
        for i, example in enumerate(examples):
            arguments = (self._answers[i], rate, example)
            self._steps[i].get_concrete_function(*arguments)
            if self.protocol.steps > 1:
                self._quiet_steps[i].get_concrete_function(*arguments)
        self._serve.get_concrete_function(self._answers[0], rate)

    def one(
        self, index: int, eta: float, feed: Callable[[int], Any]
    ) -> Arrival:
        """A replica's steps up to its message, and the centre's answer."""
        with step():
            return self._one(index, eta, feed)

    def _one(
        self, index: int, eta: float, feed: Callable[[int], Any]
    ) -> Arrival:
        start = time.perf_counter()
        rate = tf.constant(eta, tf.float32)
        answer = self._answers[index]
        for _ in range(self.protocol.steps - 1):
            self._quiet_steps[index](answer, rate, feed(index))
        message, metrics = self._steps[index](answer, rate, feed(index))
        with self._lock or contextlib.nullcontext():
            self._answers[index] = self._serve(message, rate)
            with self._count:
                stale = self.served - self._asked[index]
                self.served += 1
                self._asked[index] = self.served
        return Arrival(
            index, stale, time.perf_counter() - start, metrics.numpy()
        )

    def running(
        self, eta: Callable[[], float], feed: Callable[[int], Any]
    ) -> Running:
        """All replicas at once, each in a thread, until it is closed."""
        return Running(self, eta, feed)

    def _step_of(self, replica: Replica) -> Callable[..., Any]:
        def step(answer: tf.Tensor, eta: tf.Tensor, data: Any) -> Any:
            with tf.device(replica.device):
                message = self.protocol.step(
                    replica,
                    self._moved(answer, self.centre.device, replica.device),
                    eta,
                    replica.taken(data),
                )
                metrics = replica.metrics.read_value()
            return (
                self._moved(message, replica.device, self.centre.device),
                on_device(tf.identity, self.chief)(metrics),
            )

        return step

    def _moved(self, vector: tf.Tensor, source: str, target: str) -> tf.Tensor:
        """A vector that is on one device, on another one."""
        arrives = on_device(tf.identity, target)
        if self.packed:
            return arrives(vector)
        parts: list[tf.Tensor] = []
        with tf.device(source):
            for part in self.centre.form.weights.cut(vector):
                with tf.control_dependencies(parts[-1:]):
                    leaves = tf.identity(part)
                parts.append(arrives(leaves))
        with tf.device(target):
            return tf.concat(parts, axis=0)

    def _quiet_step_of(self, replica: Replica) -> Callable[..., Any]:
        def step(answer: tf.Tensor, eta: tf.Tensor, data: Any) -> None:
            with tf.device(replica.device):
                self.protocol.quiet_step(
                    replica,
                    answer,
                    eta,
                    replica.taken(data),
                )

        return step

    def _served(self, message: tf.Tensor, eta: tf.Tensor) -> tf.Tensor:
        with tf.device(self.centre.device):
            return self.protocol.serve(message, eta)


def _traced(function: Callable[..., Any]) -> Any:
    return tf.function(function, autograph=False)


class Running:
    """Threads that step until they are told to stop.

    ```python
    with arrivals.running(eta, feed) as running:
        arrival = running.next()
    ```
    """

    def __init__(
        self,
        arrivals: Arrivals,
        eta: Callable[[], float],
        feed: Callable[[int], Any],
    ) -> None:
        self._arrivals = arrivals
        self._eta = eta
        self._feed = feed
        self._came: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stop = threading.Event()
        # An epoch is so many steps: nobody runs further ahead of who counts
        # them than one step while the last one is looked at.
        self._ahead = threading.Semaphore(2 * len(arrivals.replicas))
        self._threads = [
            threading.Thread(target=self._go, args=(i,), daemon=True)
            for i in range(len(arrivals.replicas))
        ]

    def __enter__(self) -> Running:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._ahead.release(len(self._threads))
        for thread in self._threads:
            thread.join()

    def next(self) -> Arrival:
        """The next arrival, waited for.

        Raises:
            Exception: What a replica's step raised.
        """
        came = self._came.get()
        self._ahead.release()
        if isinstance(came, BaseException):
            raise came
        return came

    def rest(self) -> list[Arrival]:
        """The arrivals that nobody has waited for, after the end."""
        messages = []
        while not self._came.empty():
            messages.append(self._came.get())
        return [came for came in messages if isinstance(came, Arrival)]

    def _go(self, index: int) -> None:
        while True:
            self._ahead.acquire()
            if self._stop.is_set():
                return
            try:
                self._came.put(
                    self._arrivals.one(index, self._eta(), self._feed)
                )
            except BaseException as error:  # noqa: BLE001 (raised by `next`)
                self._came.put(error)
                return
