"""Replaces functions of Keras and TensorFlow that have no hook.

`PATCHES` lists all of them: why each is needed, for which models it behaves
differently, and what undoes it. All other models, those of plain Keras among
them, run the original. The module that makes a replacement passes it:

```python
replace("keras:Model.summary", by=_with_shards)
```

`tests/test_patches.py` reads the table. Attributes of single objects, such as
the `call` of a layer that works on shards, are no part of it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

from tf_convpar._compat._private import Private


class Patch(NamedTuple):
    """A function or attribute of a library that is replaced.

    Attributes:
        target: A module, a colon, and a name in it.
        why: Purpose of the replacement.
        models: Models, or other objects, for which it behaves differently.
        undone_by: What ends that for a model; `undo` ends it for the process.
        takes: Names of its parameters, where a replacement depends on them.
        everywhere: Whether other modules of the library have it by the same
            name, and call it there.
    """

    target: str
    why: str
    models: str
    undone_by: str
    takes: str = ""
    everywhere: bool = False

    def owner(self) -> tuple[Any, str]:
        """The module or class that has it, and its name there.

        Raises:
            ImportError: The library has no such thing.
        """
        Private(self.target, self.why).found()
        module, _, path = self.target.partition(":")
        outer, _, name = path.rpartition(".")
        return Private(f"{module}:{outer}", self.why).found(), name


# Values of `Patch.models`.
_ALL = "all"
_OF_STRATEGY = "models and optimizers of a ConvParallelStrategy"
_PARALLEL = "models with parallel layers"
_CLUSTER = "what runs in a cluster"
# Values of `Patch.undone_by`.
_MERGE = "`merge`, whose model is plain"
_OUTSIDE = "making the model, and its optimizer, outside of the strategy"
_END = "the end of the process"
_ONCE = "the end of the call"

PATCHES = {
    patch.target: patch
    for patch in (
        # Training.
        *(
            Patch(
                f"keras:Model.{name}",
                "callbacks, which are not told of the end after an error",
                _ALL,
                _ONCE,
            )
            for name in ("fit", "evaluate", "predict")
        ),
        Patch(
            "keras:Model.make_train_function",
            "slots that exist before the step is traced, which is traced "
            "twice otherwise, and optimizers that update by one op",
            f"{_OF_STRATEGY}, {_PARALLEL}",
            _MERGE,
        ),
        Patch(
            "keras:Model._maybe_symbolic_build",
            "leaving a dataset's first batch in it",
            _OF_STRATEGY,
            _OUTSIDE,
        ),
        Patch(
            "keras:Model._resolve_auto_jit_compile",
            "XLA under a strategy of one device",
            _OF_STRATEGY,
            _OUTSIDE,
            takes="self",
        ),
        *(
            Patch(
                f"keras:optimizers.{name}.apply",
                "optimizers in a program's own loop, out of any scope",
                _OF_STRATEGY,
                _OUTSIDE,
                takes="self grads trainable_variables",
            )
            for name in ("Optimizer", "LossScaleOptimizer")
        ),
        Patch(
            "keras:optimizers.Optimizer._backend_update_step",
            "a learning rate that is read once, not for each variable",
            _OF_STRATEGY,
            _OUTSIDE,
            takes="self grads trainable_variables learning_rate",
        ),
        *(
            Patch(
                f"keras:optimizers.{name}.update_step",
                "updates by one op, which goes over a weight once",
                "models with `algorithm='auto'`",
                "another optimizer, or `merge`",
                takes="self gradient variable learning_rate",
            )
            for name in ("SGD", "Adam")
        ),
        Patch(
            "keras.src.backend.tensorflow.trainer:TFEpochIterator.tf_sync",
            "workers that are lost while Keras waits for all at an epoch's end",
            "models that train with `Elastic`",
            "the end of `fit`",
            takes="self",
        ),
        *(
            Patch(
                f"keras:{module}.clear_session",
                "a strategy's scope, which stays open",
                "calls within the scope of a ConvParallelStrategy",
                "leaving the scope",
            )
            for module in ("utils", "backend")
        ),
        # Graphs and layers.
        Patch(
            "keras.src.models.functional:Functional._run_through_graph",
            "shards that go from layer to layer",
            "functional models with layers on shards",
            _MERGE,
            takes="self inputs operation_fn call_fn",
        ),
        Patch(
            "keras:layers.Layer.trainable",
            "freezing the layers of a model that has a parallel copy",
            "models that `parallelize` or `merge` has copied",
            "the end of the copy",
        ),
        Patch(
            "keras:Model.summary",
            "the table of shards and devices",
            _PARALLEL,
            _MERGE,
        ),
        # Files.
        Patch(
            "keras:Model.export",
            "exports without device names, shards and the compiled op",
            _PARALLEL,
            _MERGE,
        ),
        *(
            Patch(
                f"keras.saving:{name}",
                "files that are merged, and whole or not written at all",
                "models with weights in shards",
                _MERGE,
                everywhere=True,
            )
            for name in ("save_model", "save_weights")
        ),
        Patch(
            "tensorflow.python.saved_model.save:save",
            "exports by other ways than `Model.export`, which all end here",
            "objects that hold, or use, models with parallel layers",
            _MERGE,
            takes="obj export_dir signatures options",
            everywhere=True,
        ),
        # TensorFlow.
        Patch(
            "tensorflow:errors.OpError.__init__",
            "what to do, in errors that only clusters know",
            _CLUSTER,
            _END,
            takes="self node_def op message error_code args",
        ),
        Patch(
            "tensorflow.python.distribute.distribute_lib:_wrong_strategy_scope",
            "what to do about strategies that are mixed, in that error",
            _OF_STRATEGY,
            _OUTSIDE,
            takes="strategy context",
        ),
        Patch(
            "tensorflow.python.framework.auto_control_deps:"
            "MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS",
            "ops of several devices that wait for one another, and which "
            "TensorFlow would run one after the other",
            _CLUSTER,
            _END,
        ),
        *(
            Patch(
                target,
                "freeing what was traced, which is for the whole process",
                _ALL,
                _END,
                takes=takes,
            )
            for target, takes in (
                ("tensorflow:RegisterGradient.__call__", "self f"),
                (
                    "tensorflow.python.framework.func_graph:"
                    "dismantle_func_graph",
                    "func_graph",
                ),
                (
                    "tensorflow.python.eager.polymorphic_function."
                    "concrete_function:ConcreteFunctionGarbageCollector."
                    "release",
                    "",
                ),
            )
        ),
    )
}

# Functions that undo each replacement, by its target.
_undoing: dict[str, list[Callable[[], None]]] = {}


def replace(target: str, by: Callable[[Any], Any]) -> None:
    """Replaces a function or attribute of a library.

    ```python
    replace("keras:Model.summary", by=_with_shards)
    ```

    Args:
        target: A row of `PATCHES`, which nothing has replaced yet.
        by: Function that makes the replacement from the original.

    Raises:
        ValueError: No row has this target, or it is replaced already.
        ImportError: The library has no such thing.
    """
    if target not in PATCHES or target in _undoing:
        raise ValueError(
            "Expected `target` to be of `PATCHES`, and to be replaced once. "
            f"Received: target={target!r}, which "
            + ("has been replaced." if target in _undoing else "has no row.")
        )
    owner, name = PATCHES[target].owner()
    original = getattr(owner, name)
    places = [owner]
    if PATCHES[target].everywhere:
        library = target.partition(":")[0].partition(".")[0]
        places = [
            module
            for path, module in list(sys.modules.items())
            if path.partition(".")[0] == library
            and vars(module).get(name) is original
        ]
    replacement = by(original)
    _undoing[target] = [_restoring(place, name) for place in places]
    for place in places:
        setattr(place, name, replacement)


def _restoring(place: Any, name: str) -> Callable[[], None]:
    """A function that restores the present attribute, or the inherited one."""
    if name in vars(place):
        return functools.partial(setattr, place, name, vars(place)[name])
    return functools.partial(delattr, place, name)


def undo(target: str) -> None:
    """Restores what `replace` has replaced."""
    for give_back in _undoing.pop(target):
        give_back()


def replaced() -> set[str]:
    """Targets that are replaced now."""
    return set(_undoing)
