"""Where replicas' batches come from.

Arrays are cut into a shard for each replica and sent there once. A
`tf.data.Dataset` is sent as a program, so that files are read where the
replica is, which takes every P-th of its batches. What only this program can
run, a generator say, the chief feeds.
"""

from __future__ import annotations

import abc
import functools
import itertools
import threading
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_convpar._compat.keras import print_msg
from tf_convpar.machines import cpu_of
from tf_convpar.replicas.replica import Replica

# Of `tf.raw_ops.DatasetToGraphV2`: an error if a dataset has state that would
# be lost, such as a Python function.
_FAIL = 2


class Source(abc.ABC):
    """Batches for all replicas."""

    @property
    def size(self) -> int | None:
        """Samples of each of its batches; None if they are still to be cut."""
        return None

    @abc.abstractmethod
    def samples(self) -> int | None:
        """Samples of an epoch; None if there is no knowing."""

    @abc.abstractmethod
    def sample(self) -> tuple[Any, ...]:
        """A few samples, by which a model is built."""

    @abc.abstractmethod
    def place(self, replicas: Sequence[Replica], seed: int) -> None:
        """Gives each replica its data, with a random order of its own."""

    def batch(self, replica: Replica) -> Any:
        """A batch that the chief feeds, or the replica's own iterator."""
        return replica.data

    def example(self, replica: Replica) -> Any:
        """What `batch` gives, by which functions are traced."""
        return self.batch(replica)


class Arrays(Source):
    """NumPy arrays or tensors: `x`, `y` and `sample_weight`.

    Args:
        data: Two or three trees of arrays.
        shuffle: Whether each replica goes through its shard in random order.
    """

    def __init__(self, data: tuple[Any, ...], shuffle: bool) -> None:
        self._data = keras.tree.map_structure(np.asarray, data)
        lengths = {len(a) for a in keras.tree.flatten(self._data)}
        if len(lengths) != 1:
            raise ValueError(
                "Expected arrays of as many samples as one another. Received: "
                f"arrays of {sorted(lengths)} samples."
            )
        (self._samples,) = lengths
        self._shuffle = shuffle

    def samples(self) -> int:
        """As many as the arrays have."""
        return self._samples

    def sample(self) -> tuple[Any, ...]:
        """The first."""
        first: tuple[Any, ...] = self._cut(slice(0, 1))
        return first

    def place(self, replicas: Sequence[Replica], seed: int) -> None:
        """Cuts shards in proportion to batches, of samples in random order."""
        samples = self._samples
        order = np.arange(samples)
        if self._shuffle:
            np.random.default_rng(seed).shuffle(order)
        ends = np.cumsum([r.batch for r in replicas])
        cuts = (samples * ends // ends[-1]).tolist()
        for replica, begin, end in zip(
            replicas, [0, *cuts], cuts, strict=False
        ):
            if end - begin < replica.batch:
                raise ValueError(
                    f"Expected at least {replica.batch} samples, a batch, for "
                    f"each replica. Received: {end - begin} for replica "
                    f"{replica.index} of {samples} in all."
                )
            shard = self._cut(order[begin:end])
            with tf.device(cpu_of(replica.device)):
                # Made there, so that its elements are.
                shard = keras.tree.map_structure(tf.constant, shard)
                dataset = tf.data.Dataset.from_tensor_slices(shard)
                if self._shuffle:
                    dataset = dataset.shuffle(
                        end - begin, seed=seed + replica.index
                    )
                dataset = dataset.repeat()
                dataset = dataset.batch(replica.batch, drop_remainder=True)
                replica.data = iter(_untuned(dataset.prefetch(2)))

    def _cut(self, which: Any) -> Any:
        return keras.tree.map_structure(lambda a: a[which], self._data)


class Dataset(Source):
    """A `tf.data.Dataset` of batches, read by each replica itself.

    Args:
        dataset: Its elements are what Keras' `fit` takes.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._dataset = dataset
        self._graph = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset),
            external_state_policy=_FAIL,
        )

    @property
    def size(self) -> int:
        """Samples of its first element."""
        return _size(self._first)

    def samples(self) -> int | None:
        """As many as all elements would have that are as large as the first.

        One that does not know its length is gone through once.
        """
        count = int(self._dataset.cardinality())
        if count == tf.data.UNKNOWN_CARDINALITY:
            print_msg(
                "Counting the batches of a dataset that does not know how many "
                "it has; `steps_per_epoch=` saves that."
            )
            count = sum(1 for _ in self._dataset)
        return None if count < 0 else count * self.size

    def sample(self) -> tuple[Any, ...]:
        """Its first element."""
        return self._first

    @functools.cached_property
    def _first(self) -> tuple[Any, ...]:
        for element in self._dataset.take(1):
            return tuple(element)
        raise ValueError(
            "Expected a dataset that has batches. Received one that is empty."
        )

    def place(self, replicas: Sequence[Replica], seed: int) -> None:
        """Every P-th element, cut to the replica's batch."""
        count = int(self._dataset.cardinality())
        if 0 <= count < len(replicas):
            raise ValueError(
                "Expected a dataset with a batch at least for each of "
                f"{len(replicas)} replicas. Received: {count}."
            )
        for replica in replicas:
            with tf.device(cpu_of(replica.device)):
                dataset = tf.data.experimental.from_variant(
                    tf.raw_ops.DatasetFromGraph(graph_def=self._graph),
                    self._dataset.element_spec,
                )
                dataset = dataset.shard(len(replicas), replica.index)
                replica.data = iter(
                    dataset.repeat().rebatch(replica.batch, drop_remainder=True)
                )


class Fed(Source):
    """Anything that gives batches to this program.

    Args:
        batches: A generator, a `keras.utils.PyDataset`, a dataset.
        form: Makes of each batch what a step gets.
    """

    def __init__(
        self, batches: Any, form: Callable[..., tuple[Any, ...]] = tuple
    ) -> None:
        self._batches = batches
        self._form = form
        self._lock = threading.Lock()
        self._left: list[Any] = []
        self._given = 0
        self._going = iter(_endless(batches))

    @property
    def size(self) -> int:
        """Samples of the next batch."""
        return _size(self.sample())

    def samples(self) -> int | None:
        """As many as all batches would have that are as large as the next.

        Nothing is gone through: what Python gives may be another thing then.
        """
        count = None
        if isinstance(self._batches, keras.utils.PyDataset):
            count = self._batches.num_batches
        elif isinstance(self._batches, tf.data.Dataset):
            count = int(self._batches.cardinality())
        return None if count is None or count < 0 else count * self.size

    def sample(self) -> tuple[Any, ...]:
        """The next batch, which the next replica that asks gets later."""
        if not self._left:
            self._left.append(self._next())
        return tuple(self._left[0])

    def place(self, replicas: Sequence[Replica], seed: int) -> None:
        """Batches are asked for one by one, and are as large as they are."""
        for replica in replicas:
            replica.data = None
            replica.batch = self.size

    def batch(self, replica: Replica) -> Any:
        """The next one, whoever asks."""
        with self._lock:
            batch = self._left.pop() if self._left else self._next()
        return keras.tree.map_structure(tf.convert_to_tensor, tuple(batch))

    def example(self, replica: Replica) -> Any:
        """The next batch, which is still to come."""
        return keras.tree.map_structure(tf.convert_to_tensor, self.sample())

    def _next(self) -> Any:
        batch = next(self._going, None)
        if batch is None:
            raise ValueError(
                "Expected a batch for each step of every replica and epoch. "
                f"Received a {type(self._batches).__name__} that ended after "
                f"{self._given}. Give fewer steps, or data that can be gone "
                "through again."
            )
        self._given += 1
        return self._form(batch)


def _untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """A dataset that has nothing to tune, so no thread to tune it.

    TensorFlow's waits for ever, now and then, when an iterator goes while it
    starts: a program would not end.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def _endless(batches: Any) -> Iterator[Any]:
    """Batches, from the beginning again and again while there are any.

    A generator can be gone through but once.
    """
    some = True
    while some:
        some = False
        for batch in _once(batches):
            some = True
            yield batch


def _once(batches: Any) -> Iterator[Any]:
    if not isinstance(batches, keras.utils.PyDataset):
        yield from batches
        return
    count = batches.num_batches
    for i in itertools.count() if count is None else range(count):
        yield batches[i]
    batches.on_epoch_end()


def _size(sample: tuple[Any, ...]) -> int:
    """Samples of a batch."""
    shape = tuple(np.shape(keras.tree.flatten(sample)[0]))
    if not shape:
        raise ValueError(
            "Expected data whose elements are batches, as `Dataset.batch` "
            f"makes them. Received one of scalars: {sample}."
        )
    return int(shape[0])
