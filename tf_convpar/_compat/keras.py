"""Private parts of Keras that this package uses.

A name of `keras.src` is looked up when it is imported from here: one that a
newer Keras lacks is named in the error, and only its user fails:

```python
from tf_convpar._compat.keras import Functional
```

What is private to objects is read by the functions below. `keras_private` lists
both, each with its reason. Keras is not imported before something of it is
asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from tf_convpar._compat.keras_private import NAMES
from tf_convpar._compat.keras_private import OPERATIONS

# Attributes that `keras.Function` computes from a graph.
OF_GRAPHS = (
    *("_inputs_struct", "_outputs_struct", "_inputs", "_outputs"),
    *("_nodes", "_nodes_by_depth", "_operations", "_operations_by_depth"),
)
# Attributes of a layer that was neither called nor traced, with their makers.
FRESH: dict[str, Callable[[], Any]] = {
    **dict.fromkeys(("_inbound_nodes", "_outbound_nodes", "_losses"), list),
    "_loss_ids": set,
    **dict.fromkeys(
        (
            *("train_function", "test_function", "predict_function"),
            *("_epoch_iterator", "_eval_epoch_iterator"),
        ),
        type(None),
    ),
}


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return NAMES[name].found()


def operations(*names: str) -> tuple[type, ...]:
    """Classes of operations: those of `names` that this Keras has.

    One that it names otherwise runs on joined tensors, as unknown ones do.
    """
    classes = []
    for name in names:
        with contextlib.suppress(ImportError):
            classes.append(OPERATIONS[name].found())
    return tuple(classes)


# Layers.


def is_adapted(layer: Any) -> bool:
    """Whether LoRA or, in newer Keras, DoRA changes a layer's kernel.

    The stored kernel is then not the one that the layer computes with.
    """
    return bool(
        getattr(layer, "lora_enabled", False)
        or getattr(layer, "dora_enabled", False)
    )


def layers_of(layer: Any, recursive: bool = True) -> list[Any]:
    """The layers within a layer or model, without itself.

    `Model.layers` has those of one model only.
    """
    return list(layer._flatten_layers(include_self=False, recursive=recursive))


def own_variables(layer: Any) -> list[Any]:
    """Weights of a layer, without those of layers within it.

    `Layer.weights` has these too.
    """
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def keeps_state(layer: Any) -> bool:
    """Whether calls change a layer, by statistics or a seed.

    `Layer.non_trainable_variables` has weights that are frozen too.
    """
    return bool(layer._non_trainable_variables or layer._seed_generators)


def takes_training(layer: Any) -> bool:
    """Whether a layer takes the argument `training`."""
    return bool(getattr(layer, "_call_has_training_arg", False))


def training_of_call() -> bool | None:
    """The argument `training` of the call that runs now; None outside."""
    context = NAMES["get_global_attribute"].found()("current_call_ctx")
    told: bool | None = context and context.get_value("training")
    return told


# Graphs.


def functional_of(model: Any) -> Any:
    """The functional model in a sequential one, once it is made."""
    return getattr(model, "_functional", None)


def graph_of(model: Any) -> Any:
    """The object with a model's nodes: in a sequential one, its functional."""
    return functional_of(model) or model


def nodes_by_depth(model: Any) -> dict[int, list[Any]] | None:
    """The calls of a graph, by their distance to its end; None without one."""
    nodes: dict[int, list[Any]] | None
    nodes = getattr(graph_of(model), "_nodes_by_depth", None)
    return nodes


def inbound_nodes(model: Any) -> list[Any]:
    """The calls of a layer or model."""
    return list(model._inbound_nodes)


def made_by(tensor: Any) -> Any:
    """The layer or operation whose output a symbolic tensor is."""
    return tensor._keras_history.operation


def has_history(tensor: Any) -> bool:
    """Whether a symbolic tensor is of a graph."""
    return hasattr(tensor, "_keras_history")


def call_of(tensor: Any) -> Any:
    """The call whose output a symbolic tensor is; None where a graph begins."""
    operation, index, _ = tensor._keras_history
    return operation and operation._inbound_nodes[index]


def structure_of(model: Any) -> tuple[Any, Any]:
    """Inputs and outputs of a functional model, in the model's structures.

    `Model.inputs` and `Model.outputs` have them in lists.
    """
    return model._inputs_struct, model._outputs_struct


def calls_in_order(model: Any) -> list[Any]:
    """The calls of a functional model's graph, each after those it needs."""
    depths = sorted(model._nodes_by_depth.items(), reverse=True)
    return [node for _, nodes in depths for node in nodes]


def tracked_layers(model: Any) -> list[Any]:
    """All layers that a model tracks, with graphs that it has left."""
    _, tracked = model._tracker.config["layers"]
    return list(tracked)


def track_anew(tracker: Any) -> None:
    """Updates the ids by which a tracker knows its objects."""
    tracker.stored_ids = {
        name: {id(item) for item in store}
        for name, (_, store) in tracker.config.items()
    }


def loss_of(model: Any, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
    """The loss of a step of training, as Keras' `train_step` computes it."""
    return model._compute_loss(x, y, y_pred, sample_weight, training=True)


def is_seed(variable: Any) -> bool:
    """Whether a variable is the state of a `keras.random.SeedGenerator`."""
    return bool(variable.name == "seed_generator_state")


def excludes_from_decay(optimizer: Any) -> bool:
    """Whether some variables have no weight decay."""
    return bool(
        getattr(optimizer, "_exclude_from_weight_decay", None)
        or getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    )


def steps_counter(optimizer: Any) -> Any:
    """The variable that counts an optimizer's steps.

    `Optimizer.iterations` is computed from it where gradients are accumulated.
    """
    return optimizer._iterations


def has_schedule(optimizer: Any) -> bool:
    """Whether the learning rate is a schedule, which cannot be set."""
    return not hasattr(optimizer._learning_rate, "assign")


def auto_jit_compile(model: Any) -> bool:
    """What `jit_compile="auto"` gives a model in this program."""
    return bool(model._resolve_auto_jit_compile())


def of_a_fit(model: Any) -> dict[str, Any]:
    """Attributes of a model that belong to the object, or to a `fit`.

    Keras wraps methods of each object, and its loops keep things there.
    """
    names = (
        *("build", "quantize"),
        *("history", "stop_training", "stop_evaluating", "stop_predicting"),
        *("_initial_epoch", "_eval_epoch_iterator"),
    )
    return {name: vars(model)[name] for name in names if name in vars(model)}


def begin_at(model: Any, epoch: int | None) -> None:
    """Lets `fit`, which has begun, start at an epoch; None for the usual."""
    model._initial_epoch = epoch


def restored_epoch(model: Any) -> int | None:
    """The epoch at which `BackupAndRestore` lets `fit` begin, if any."""
    epoch: int | None = model._initial_epoch
    return epoch


def is_validated(model: Any, epoch: int, freq: int | list[int]) -> bool:
    """Whether `fit(validation_freq=freq)` validates after an epoch, from 0.

    Raises:
        ValueError: It is neither a number nor a list of epochs.
    """
    validated: bool = model._should_eval(epoch, freq)
    return validated


def is_of_compile(value: Any) -> bool:
    """Whether `compile` makes objects of a value's class."""
    return type(value).__module__.startswith("keras.src.trainers.")


# Variables.


def stored(variable: Any) -> Any:
    """The storage of a variable: a `tf.Variable`, or shards; None at first.

    `Variable.value` is the value in it.
    """
    return variable._value


def store(variable: Any, value: Any) -> None:
    """Replaces the storage of a variable."""
    variable._value = value


def initialize(variable: Any, value: Any, watched: bool) -> None:
    """Makes the storage of a variable.

    Args:
        variable: Variable without storage.
        value: An array.
        watched: Whether tapes watch it: they watch what is trainable to
            TensorFlow, whether or not Keras has frozen it.
    """
    before = variable._trainable
    variable._trainable = watched
    variable._initialize(value)
    variable._trainable = before


def stored_dtype(variable: Any) -> Any:
    """The dtype of storage; `Variable.dtype` may be that of computations."""
    return variable._dtype


def list_instead(
    archived: Any, before: Sequence[Any], now: Sequence[Any]
) -> None:
    """Replaces variables in the list of an `ExportArchive`, if it is one.

    It traces its functions, and lists what they use, before it saves them.

    Args:
        archived: The object that it saves.
        before: Variables of TensorFlow's that it may have listed.
        now: Variables that its functions will use instead.
    """
    listed = getattr(archived, "_all_variables", None)
    if listed and before:
        gone = set(map(id, before))
        kept = [v for v in listed if id(v) not in gone]
        archived._all_variables = [*kept, *now]


# Optimizers, and what trains.


def trained_by(optimizer: Any) -> list[Any]:
    """The variables that an optimizer has been built for, in their order."""
    return list(optimizer._trainable_variables)


def slots_of(optimizer: Any, variable: Any) -> list[Any]:
    """The slots of SGD, or of Adam, for a variable of TensorFlow's."""
    index = optimizer._get_variable_index(variable)
    names = ("momentums", "_momentums", "_velocities")
    slot_lists = [getattr(optimizer, name, None) for name in names]
    return [slots[index].value for slots in slot_lists if slots]


def number_anew(optimizer: Any) -> None:
    """Updates the ids by which an optimizer finds its variables."""
    optimizer._trainable_variables_indices = {
        optimizer._var_key(variable): i
        for i, variable in enumerate(optimizer._trainable_variables)
    }


def strategy_of(optimizer: Any) -> Any:
    """The strategy that was in scope where an optimizer was made."""
    return optimizer._distribution_strategy


def adopt(optimizer: Any, strategy: Any) -> None:
    """Sets the strategy of an optimizer."""
    optimizer._distribution_strategy = strategy


def join(model: Any, strategy: Any) -> None:
    """Sets the strategy of a model, or None, past Keras' tracking."""
    vars(model)["_distribute_strategy"] = strategy


@contextlib.contextmanager
def without_strategy(model: Any) -> Iterator[None]:
    """Context in which a model has no strategy."""
    strategy = model.distribute_strategy
    join(model, None)
    try:
        yield
    finally:
        join(model, strategy)
