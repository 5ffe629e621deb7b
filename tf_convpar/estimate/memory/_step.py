"""How much memory a training step takes, layer by layer.

Zou et al. (2017; paper 2) begin the choice of a mini-batch with what is left
of a device's memory beside feature maps and parameters. That idea is theirs;
what is counted here, and how, is ours, after what TensorFlow does:

- Feature maps are those that gradients read (a ReLU keeps its result, a
  convolution its input, in the dtype of the computation). Keras and
  TensorFlow keep no gradient for each image, as some frameworks did.
- A layer's gradients are its kernels' and biases', in the dtype that they
  have in the step.
- The peak is not the sum of a table's columns: gradients of early layers do
  not exist yet when feature maps of late ones are still kept. It comes from
  a walk through the step (`tf_convpar.estimate.memory._liveness`).
- TensorFlow's allocator hands out pieces that are larger than what is asked
  for, up to twice, where it has no better ones. That depends on all that
  went before. We measured 6 to 37 % in all (docs/estimating.md), the more
  the fewer and larger tensors are, and count a tenth and the largest tensor
  of the step: what fits what we measured. It grows with the batch, so that
  the largest that fits can be searched for; an imitation of the allocator,
  piece by piece, does not.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING
from typing import Any

from tf_convpar.estimate.memory import _liveness
from tf_convpar.estimate.memory._graph import StepGraph
from tf_convpar.estimate.memory._graph import trace
from tf_convpar.estimate.memory._graph import variable_bytes

if TYPE_CHECKING:
    from rich.table import Table

MIB = 2**20
COLUMNS = ("feature_maps", "weights", "gradients", "slots", "workspace")
# Of what is asked for, what the allocator hands out beyond it, beside the
# largest tensor.
_BEYOND = 1 / 10
# What belongs to no layer: loss, optimizer, the input.
OTHER = "(other)"


@dataclasses.dataclass(frozen=True)
class Row:
    """Bytes of one layer.

    Attributes:
        layer: Its name.
        feature_maps: Of what it makes, kept for the backward pass.
        weights: Trainable or not.
        gradients: Of those that are trained.
        slots: That the optimizer keeps for them.
        workspace: Of the algorithms of its convolution, the most of the
            three passes. TensorFlow's own reports none.
    """

    layer: str
    feature_maps: int = 0
    weights: int = 0
    gradients: int = 0
    slots: int = 0
    workspace: int = 0

    @property
    def total(self) -> int:
        """All of it, whether or not at one time."""
        return sum(getattr(self, column) for column in COLUMNS)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of a training step.

    Attributes:
        batch: Images in it.
        rows: Of each layer that has anything, in the model's order.
        peak: By kind, when most is in memory: `"weights"`, `"slots"`,
            `"input"`, `"feature maps"` (kept or just made), `"gradients"`
            (of feature maps and of weights, and what updates make),
            `"allocator"` (what it hands out beyond all that was asked for)
            and `"workspace"`, which convolutions use one after the other.
        peak_layer: The layer whose operation runs then.
    """

    batch: int
    rows: tuple[Row, ...]
    peak: dict[str, int]
    peak_layer: str

    @property
    def peak_bytes(self) -> int:
        """The most that is in memory at once."""
        return sum(self.peak.values())

    @property
    def asked_bytes(self) -> int:
        """Of the peak, what TensorFlow's allocator is asked for."""
        beyond = self.peak["allocator"] + self.peak["workspace"]
        return self.peak_bytes - beyond

    @property
    def totals(self) -> dict[str, int]:
        """Of each column, over all layers."""
        return {
            column: sum(getattr(row, column) for row in self.rows)
            for column in COLUMNS
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
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
        """For the terminal: the largest layers first, in MiB.

        A column of nothing is left out.

        Args:
            layers: How many; None for all.
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


def training_memory(
    model: Any,
    batch: int,
    optimizer: Any = None,
    algorithm: str | None = None,
) -> Memory:
    """Of one training step of a model, from `model.fit` for example.

    ```python
    model = keras.applications.VGG16(weights=None)
    memory = training_memory(model, batch=32, optimizer="adam")
    memory.peak_bytes / 2**30  # GiB
    ```

    The step is traced for it, and not run; that takes seconds for a large
    model. The optimizer's variables are made for a moment.

    Args:
        model: Sequential or functional, built for one size of images.
        batch: Images in a step.
        optimizer: Keras' name or an optimizer; None for the one that the
            model was compiled with, or plain SGD.
        algorithm: For every convolution that has a choice; None for what its
            layer says. `"auto"` measures what it does not know yet.

    Returns:
        Bytes by layer, and at the peak.

    Raises:
        ValueError: The batch is no number of images, the algorithm is none,
            or the model has no known sizes.
    """
    return Step(model, optimizer).memory(batch, algorithm)


class Step:
    """Of a model and an optimizer: traced once, asked for many batches.

    ```python
    step = Step(model, "adam")
    [step.memory(batch).peak_bytes for batch in (16, 32, 64)]
    ```
    """

    def __init__(self, model: Any, optimizer: Any = None) -> None:
        """Traces the step.

        Args:
            model: As for `training_memory`.
            optimizer: As for `training_memory`.
        """
        import keras

        if optimizer is None:
            optimizer = getattr(model, "optimizer", None) or "sgd"
        self.model = model
        self.graph: StepGraph = trace(model, keras.optimizers.get(optimizer))
        self._own = list(_own_weights(model))

    def memory(self, batch: int, algorithm: str | None = None) -> Memory:
        """As `training_memory`."""
        workspaces = self.workspaces(check_batch(batch), algorithm)
        live = _liveness.most_live(self.graph, batch)
        peak = self._peak(batch, live)
        peak["workspace"] = max(workspaces.values(), default=0)
        rows = tuple(row for row in self._rows(batch, workspaces) if row.total)
        place = live.operation.layer
        where = OTHER if place is None else self._own[place][0].name
        return Memory(batch, rows, peak, where)

    def peak_bytes(self, batch: int) -> int:
        """Without workspaces, for a search: nothing else is worked out."""
        live = _liveness.most_live(self.graph, batch)
        return sum(self._peak(batch, live).values())

    def _peak(self, batch: int, live: _liveness.Live) -> dict[str, int]:
        asked = {
            "weights": sum(
                variable_bytes(weight) for _, own in self._own for weight in own
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
        """Of each layer whose convolution has one."""
        from tf_convpar.algorithms import _passes
        from tf_convpar.algorithms._algorithm import PASSES
        from tf_convpar.algorithms._choose import choose
        from tf_convpar.layers._geometries import convolutions

        if algorithm not in (None, "auto"):
            _passes.check_name(algorithm)
        layers = {layer.name: layer for layer, _ in self._own}
        found = {}
        for name, geometry in convolutions(self.model, batch):
            named = algorithm or getattr(layers[name], "algorithm", None)
            if named is None:
                continue
            if named == "auto":
                choice = choose(geometry)
            else:
                choice = _passes.by_name(named, geometry)
            found[name] = max(
                getattr(choice, which).workspace(geometry, which)
                for which in PASSES
            )
        return found

    def _rows(self, batch: int, workspaces: dict[str, int]) -> Iterator[Row]:
        kept: collections.Counter[int | None] = collections.Counter()
        for tensor, operation in _liveness.kept(self.graph).items():
            kept[operation.layer] += self.graph.sizes[tensor].at(batch)
        slots = self.graph.slots
        for place, (layer, own) in enumerate(self._own):
            trained = [w for w in own if w.trainable]
            yield Row(
                layer.name,
                feature_maps=kept[place],
                weights=sum(map(variable_bytes, own)),
                gradients=sum(map(variable_bytes, trained)),
                slots=sum(slots.get(w.path, 0) for w in trained),
                workspace=workspaces.get(layer.name, 0),
            )
        yield Row(OTHER, kept[None], slots=slots.get("", 0))


def check_batch(batch: Any) -> int:
    """The batch, if it is one.

    Raises:
        ValueError: It is not.
    """
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise ValueError(
            "Expected `batch` to be a whole number of at least 1. Received: "
            f"{batch!r}."
        )
    return batch


def _own_weights(model: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Layers, each with the weights that no layer before or in it has."""
    seen: set[int] = set()
    for layer in model._flatten_layers(include_self=False):
        inner = {
            id(weight)
            for part in layer._flatten_layers(include_self=False)
            for weight in part.weights
        }
        own = [w for w in layer.weights if id(w) not in inner | seen]
        seen.update(map(id, own))
        yield layer, own


def _mib(size: int) -> str:
    return f"{size / MIB:.1f}"
