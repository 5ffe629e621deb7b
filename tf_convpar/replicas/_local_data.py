"""Datasets that each replica makes where it is, of what that machine has."""

from __future__ import annotations

import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_convpar.machines import cpu_of
from tf_convpar.machines import short
from tf_convpar.replicas.data import Source
from tf_convpar.replicas.replica import Replica


class LocalDatasets(Source):
    """What a function makes on each machine; no sample comes to the chief.

    ```python
    def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
        files = tf.data.Dataset.list_files("/data/*.tfrecord")
        return tf.data.TFRecordDataset(files).map(parsed).batch(32)

    method.fit(dataset, epochs=3)
    ```

    The function is called in a graph, which is sent: what it lists and reads
    is what the machine has that runs it.

    Args:
        make: It. `input_pipeline_id` is the replica's place among `devices`,
            and stays so when others are lost.
        devices: Names of the replicas' devices.
    """

    def __init__(
        self,
        make: Callable[[tf.distribute.InputContext], tf.data.Dataset],
        devices: Sequence[str],
    ) -> None:
        self._make = make
        self._devices = list(devices)
        # Those that have replicas: others are lost, or not there yet.
        self._present = self._devices
        self._graphs: dict[str, tuple[bytes, Any]] = {}

    @property
    def size(self) -> int:
        """Samples of the first replica's first element."""
        return int(self._shapes[0][0])

    def samples(self) -> int | None:
        """As many as all elements would have that are as large as the first."""
        counts = []
        for device in self._present:
            with tf.device(cpu_of(device)):
                dataset = self._dataset(device)
                counts.append(int(tf.data.experimental.cardinality(dataset)))
        return None if min(counts) < 0 else sum(counts) * self.size

    def sample(self) -> tuple[Any, ...]:
        """Zeros, like a sample of the first element."""
        zeros = [
            np.zeros([1, *shape[1:]], spec.dtype.as_numpy_dtype)
            for shape, spec in zip(
                self._shapes, tf.nest.flatten(self._spec), strict=True
            )
        ]
        packed: tuple[Any, ...] = tuple(
            tf.nest.pack_sequence_as(self._spec, zeros)
        )
        return packed

    def place(self, replicas: Sequence[Replica], seed: int) -> None:
        """Each replica's own, cut to its batch."""
        self._present = [replica.device for replica in replicas]
        for replica in replicas:
            # Who was away or late when `fit` began comes after the others.
            if replica.device not in self._devices:
                self._devices.append(replica.device)
            with tf.device(cpu_of(replica.device)):
                dataset = self._dataset(replica.device).repeat()
                replica.data = iter(
                    dataset.rebatch(replica.batch, drop_remainder=True)
                )

    @functools.cached_property
    def _shapes(self) -> list[tuple[int, ...]]:
        """Of the first element's tensors, which stay where they are."""
        device = self._devices[0]
        with tf.device(cpu_of(device)):
            for element in self._dataset(device).take(1):
                shapes = [tf.shape(part) for part in tf.nest.flatten(element)]
                break
            else:
                raise ValueError(
                    "Expected a dataset that has batches. Received one that is "
                    f"empty on {short(device)}."
                )
        sizes = [tuple(map(int, shape.numpy())) for shape in shapes]
        if () in sizes:
            raise ValueError(
                "Expected data whose elements are batches, as `Dataset.batch` "
                f"makes them. Received one of scalars: {self._spec}."
            )
        return sizes

    @property
    def _spec(self) -> Any:
        return self._graph(self._devices[0])[1]

    def _dataset(self, device: str) -> tf.data.Dataset:
        """A dataset on the current device."""
        graph, spec = self._graph(device)
        variant = tf.raw_ops.DatasetFromGraph(graph_def=graph)
        return tf.data.experimental.from_variant(variant, spec)

    def _graph(self, device: str) -> tuple[bytes, Any]:
        """What makes a replica's dataset, and its elements' specification."""
        if device not in self._graphs:
            self._graphs[device] = self._traced(device)
        return self._graphs[device]

    def _traced(self, device: str) -> tuple[bytes, Any]:
        context = tf.distribute.InputContext(
            num_input_pipelines=len(self._devices),
            input_pipeline_id=self._devices.index(device),
            num_replicas_in_sync=len(self._devices),
        )
        datasets: list[tf.data.Dataset] = []

        def variant() -> tf.Tensor:
            datasets.append(self._make(context))
            _check(datasets[-1])
            return tf.data.experimental.to_variant(datasets[-1])

        # Not a tf.Graph, in which `==` compares tensors as Python objects.
        traced = tf.function(variant, autograph=False).get_concrete_function()
        graph = traced.graph
        if graph.inputs:
            raise ValueError(
                "Expected a function that makes all it uses. Received one that "
                f"uses tensors from without: {graph.inputs}. Make them within "
                "it, or give NumPy arrays."
            )
        (result,) = graph.outputs
        with graph.as_default():
            # By this node the dataset is found among all.
            attributes = {
                "index": tf.compat.v1.AttrValue(i=0),
                "T": tf.compat.v1.AttrValue(type=result.dtype.as_datatype_enum),
            }
            graph.create_op(
                "_Retval", [result], [], name="dataset", attrs=attributes
            )
        spec = datasets[-1].element_spec
        return graph.as_graph_def().SerializeToString(), spec


def _check(dataset: Any) -> None:
    """Raises ValueError for what is no dataset of batches."""
    if not isinstance(dataset, tf.data.Dataset):
        raise ValueError(
            "Expected a function that returns a tf.data.Dataset of batches, "
            "made of TensorFlow's operations. Received one that returns "
            f"{type(dataset).__name__}."
        )
    if not isinstance(dataset.element_spec, tuple):
        raise ValueError(
            "Expected elements of (x, y) or (x, y, sample_weight). Received: "
            f"{dataset.element_spec}."
        )
