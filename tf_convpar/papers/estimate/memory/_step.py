"""How much memory a training step takes, layer by layer.

Zou et al. (2017; paper 2) begin the choice of a mini-batch with what is left
of a device's memory beside feature maps and parameters. That idea is theirs.
What is counted here, and how, is ours, and follows what TensorFlow does:

- Feature maps are those that gradients read (a ReLU keeps its result, a
  convolution its input, in the dtype of the computation). Keras and
  TensorFlow keep no gradient for each image, as some frameworks did.
- The gradients of a layer are those of its kernels and biases, in the dtype
  that they have in the step.
- The peak is not the sum of a table's columns: gradients of early layers do
  not exist yet when feature maps of late ones are still kept. It comes from
  a walk through the step (`tf_convpar.papers.estimate.memory._liveness`).
- TensorFlow's allocator hands out pieces that are up to twice as large as what
  is asked for, where it has no better ones. That depends on all that went
  before. We measured 6 to 37 % in all (docs/estimating.md): the fewer and
  larger the tensors are, the more. What we count, a tenth and the largest
  tensor of the step, fits those measurements. It grows with the batch, so that
  the largest batch that fits can be searched for. An imitation of the
  allocator, piece by piece, does not.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING
from typing import Any

from tf_convpar._compat.keras import layers_of
from tf_convpar.papers.estimate.memory import _liveness
from tf_convpar.papers.estimate.memory._graph import StepGraph
from tf_convpar.papers.estimate.memory._graph import trace
from tf_convpar.papers.estimate.memory._graph import variable_bytes
from tf_convpar.units import MIB

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = ("feature_maps", "weights", "gradients", "slots", "workspace")
# The share of all bytes asked for that the allocator hands out beyond them; it
# also hands out as much as the largest tensor.
_BEYOND = 1 / 10
# The name of the row for what belongs to no layer: loss, optimizer, the input.
OTHER = "(other)"


@dataclasses.dataclass(frozen=True)
class LayerRow:
    """Bytes of one layer.

    Attributes:
        layer: Name of the layer.
        feature_maps: Bytes of the tensors that it makes and that are kept for
            the backward pass.
        weights: Bytes of its weights, trainable or not.
        gradients: Bytes of the gradients of its trainable weights.
        slots: Bytes of the optimizer's slots for its trainable weights.
        workspace: Bytes that the algorithms of its convolution need beside
            arguments and results, the most of the three passes. TensorFlow's
            own convolution reports none.
    """

    layer: str
    feature_maps: int = 0
    weights: int = 0
    gradients: int = 0
    slots: int = 0
    workspace: int = 0

    @property
    def total(self) -> int:
        """Sum of all bytes, whether or not they are in memory at once."""
        return sum(getattr(self, column) for column in COLUMNS)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of a training step.

    Attributes:
        batch: Number of images in the step.
        rows: A row for each layer that has anything, in the model's order.
        peak: Bytes by kind, at the moment when most is in memory: `"weights"`,
            `"slots"`, `"input"`, `"feature maps"` (kept or just made),
            `"gradients"` (of feature maps and of weights, and what updates
            make), `"allocator"` (what the allocator hands out beyond all that
            it is asked for) and `"workspace"`, which convolutions use one after
            the other.
        peak_layer: Name of the layer whose operation runs at that moment.
    """

    batch: int
    rows: tuple[LayerRow, ...]
    peak: dict[str, int]
    peak_layer: str

    @property
    def peak_bytes(self) -> int:
        """The most bytes that are in memory at once."""
        return sum(self.peak.values())

    @property
    def asked_bytes(self) -> int:
        """The bytes at the peak that TensorFlow's allocator is asked for."""
        beyond = self.peak["allocator"] + self.peak["workspace"]
        return self.peak_bytes - beyond

    @property
    def totals(self) -> dict[str, int]:
        """Sum of each column over all layers."""
        return {
            column: sum(getattr(row, column) for row in self.rows)
            for column in COLUMNS
        }

    def to_dict(self) -> dict[str, Any]:
        """The memory as plain data, for JSON."""
        return {
            "batch": self.batch,
            "peak_bytes": self.peak_bytes,
            "asked_bytes": self.asked_bytes,
            "peak": self.peak,
            "peak_layer": self.peak_layer,
            "totals": self.totals,
            "layers": [dataclasses.asdict(row) for row in self.rows],
        }

    def table(self, layers: int | None = None) -> Table:
        """A table for the terminal in MiB, the largest layers first.

        Columns without any bytes are left out.

        Args:
            layers: Number of layers with a row of their own; None for all.
        """
        from rich.markup import escape
        from rich.table import Table

        table = Table(show_footer=True)
        totals = self.totals
        columns = [c for c in COLUMNS if totals[c]]
        table.add_column("Layer (MiB)", "In all layers", no_wrap=True)
        for column in columns:
            table.add_column(
                column.rpartition("_")[2].capitalize(),
                _mib(totals[column]),
                justify="right",
            )
        table.add_column("Sum", _mib(sum(totals.values())), justify="right")
        ordered = sorted(self.rows, key=lambda row: -row.total)
        for row in ordered[:layers]:
            table.add_row(
                escape(row.layer),
                *(_mib(getattr(row, column)) for column in columns),
                _mib(row.total),
            )
        rest = ordered[layers:] if layers is not None else []
        if rest:
            sums = [sum(getattr(r, column) for r in rest) for column in columns]
            table.add_row(
                f"{len(rest)} more", *map(_mib, sums), _mib(sum(sums))
            )
        return table

    @property
    def peak_text(self) -> str:
        """A line about the peak: its layer, and its bytes by kind."""
        parts = (f"{kind} {_mib(size)}" for kind, size in self.peak.items())
        return (
            f"At the peak {_mib(self.peak_bytes)} MiB, in layer "
            f"{self.peak_layer}: {', '.join(parts)}"
        )


class Step:
    """The training step of a model, as `model.fit` runs it.

    ```python
    step = Step(keras.applications.VGG16(weights=None), "adam")
    step.memory(batch=32).peak_bytes / 2**30  # GiB
    ```

    It is traced once, and asked for many batches. It is not run. Tracing takes
    seconds for a large model, and makes the optimizer's variables for a moment.
    """

    def __init__(self, model: Any, optimizer: Any = None) -> None:
        """Traces the step.

        Args:
            model: A Sequential or functional model, built for one size of
                images.
            optimizer: A Keras optimizer or its name; None for the one that the
                model was compiled with, or else plain SGD.

        Raises:
            ValueError: The model has no known sizes.
        """
        import keras

        if optimizer is None:
            optimizer = getattr(model, "optimizer", None) or "sgd"
        self.model = model
        self.graph: StepGraph = trace(model, keras.optimizers.get(optimizer))
        self._layer_weights = list(_weights_by_layer(model))

    def memory(self, batch: int, algorithm: str | None = None) -> Memory:
        """The bytes of each layer, and those at the peak.

        Args:
            batch: Number of images in the step.
            algorithm: As for `workspaces`.

        Raises:
            ValueError: The batch is no number of images, or there is no such
                algorithm.
        """
        workspaces = self.workspaces(check_batch(batch), algorithm)
        live = _liveness.most_live(self.graph, batch)
        peak = self._peak(batch, live)
        peak["workspace"] = max(workspaces.values(), default=0)
        rows = tuple(row for row in self._rows(batch, workspaces) if row.total)
        place = live.operation.layer
        where = OTHER if place is None else self._layer_weights[place][0].name
        return Memory(batch, rows, peak, where)

    def peak_bytes(self, batch: int) -> int:
        """Bytes at the peak without workspaces, quickly, for a search."""
        live = _liveness.most_live(self.graph, batch)
        return sum(self._peak(batch, live).values())

    def _peak(self, batch: int, live: _liveness.Live) -> dict[str, int]:
        asked = {
            "weights": sum(
                variable_bytes(weight)
                for _, weights in self._layer_weights
                for weight in weights
            ),
            "slots": sum(self.graph.slots.values()),
            "input": self.graph.inputs.at(batch),
            "feature maps": live.forward_bytes,
            "gradients": live.backward_bytes,
        }
        largest = max(size.at(batch) for size in self.graph.sizes)
        beyond = round(_BEYOND * sum(asked.values())) + largest
        return {**asked, "allocator": beyond}

    def workspaces(self, batch: int, algorithm: str | None) -> dict[str, int]:
        """Workspace in bytes of each convolution with an algorithm, by layer.

        Args:
            batch: Number of images.
            algorithm: Name of the algorithm of every convolution that has a
                choice; None for what its layer says. `"auto"` measures what it
                does not know yet.
        """
        from tf_convpar import algorithms
        from tf_convpar.layers import convolutions

        if algorithm is not None:
            algorithms.check_algorithm(algorithm)
        layers = {layer.name: layer for layer, _ in self._layer_weights}
        sizes = {}
        for name, geometry in convolutions(self.model, batch):
            named = algorithm or getattr(layers[name], "algorithm", None)
            if named is None:
                continue
            if named == "auto":
                choice = algorithms.choose(geometry)
            else:
                choice = algorithms.by_name(named, geometry)
            sizes[name] = max(
                getattr(choice, which).workspace(geometry, which)
                for which in algorithms.PASSES
            )
        return sizes

    def _rows(
        self, batch: int, workspaces: dict[str, int]
    ) -> Iterator[LayerRow]:
        kept: collections.Counter[int | None] = collections.Counter()
        for tensor, operation in _liveness.kept(self.graph).items():
            kept[operation.layer] += self.graph.sizes[tensor].at(batch)
        slots = self.graph.slots
        for place, (layer, weights) in enumerate(self._layer_weights):
            trained = [w for w in weights if w.trainable]
            yield LayerRow(
                layer.name,
                feature_maps=kept[place],
                weights=sum(map(variable_bytes, weights)),
                gradients=sum(map(variable_bytes, trained)),
                slots=sum(slots.get(w.path, 0) for w in trained),
                workspace=workspaces.get(layer.name, 0),
            )
        yield LayerRow(OTHER, kept[None], slots=slots.get("", 0))


def check_batch(batch: Any) -> int:
    """Returns the batch if it is a number of images.

    Raises:
        ValueError: It is not.
    """
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise ValueError(
            "Expected `batch` to be a whole number of at least 1. Received: "
            f"{batch!r}."
        )
    return batch


def _weights_by_layer(model: Any) -> Iterator[tuple[Any, list[Any]]]:
    """The layers, each with the weights that no layer before or in it has."""
    seen: set[int] = set()
    for layer in layers_of(model):
        inner = {
            id(weight) for part in layers_of(layer) for weight in part.weights
        }
        unseen = [w for w in layer.weights if id(w) not in inner | seen]
        seen.update(map(id, unseen))
        yield layer, unseen


def _mib(size: int) -> str:
    return f"{size / MIB:.1f}"
