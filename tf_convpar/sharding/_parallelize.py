"""`parallelize`: any Keras CNN to its parallel form."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat.keras import layers_of
from tf_convpar._compat.keras import print_msg
from tf_convpar.algorithms import check_algorithm
from tf_convpar.layers import ConvParallel
from tf_convpar.layers import chief
from tf_convpar.placement import device_type
from tf_convpar.plans import ByLayer
from tf_convpar.plans import Plan
from tf_convpar.plans import load
from tf_convpar.sharding import _conversion
from tf_convpar.sharding import _report
from tf_convpar.sharding._merge import check_model
from tf_convpar.sharding._parallel_copier import ParallelCopier
from tf_convpar.sharding._predict import hoist_weights_in_predict
from tf_convpar.sharding._trainable import follow
from tf_convpar.sharding._training import place_slots
from tf_convpar.sharding._training import settle_xla
from tf_convpar.sharding.rules import check_moments
from tf_convpar.strategy.arguments import check_wire_dtype
from tf_convpar.strategy.strategy import ConvParallelStrategy


def parallelize(
    model: keras.Model,
    plan: Mapping[str, Any] | str | None = None,
    *,
    batch_size: int | None = None,
    algorithm: str | None = None,
    wire_dtype: str | Mapping[str, str] | None = None,
    moments: str = "all",
    verbose: bool = True,
) -> keras.Model:
    """A copy of a model, with its convolutions spread over devices.

    ```python
    with convpar.ConvParallelStrategy().scope():
        model = keras.applications.ResNet50(weights="imagenet")
        model.compile("sgd", "sparse_categorical_crossentropy")
        model = convpar.parallelize(model)
    model.fit(x, y)
    plain = convpar.merge(model)
    ```

    Feature maps stay in shards from layer to layer. A convolution gathers its
    input from the devices that have it, not from the chief. Pooling, batch
    normalization, activations and the like run where the shards are
    (`tf_convpar.sharding.rules`). Whatever has no rule runs on the chief, as
    before. Results are those of the model itself.

    Args:
        model: A Keras model of any kind, which stays as it is. In Sequential
            and functional models, feature maps stay in shards. Convolutions
            that models and layers of your own hold as attributes, or that have
            no input shape yet, are spread one by one. `summary()` of the new
            model says which ones stay whole, and why.
        plan: How each layer is split: a mapping, a plan, or the path of one,
            as for `ConvParallelStrategy`. Names may be regular expressions
            (`re.fullmatch`). Numbers are kernels per device. `"samples"` is
            equal shares of the samples. A mapping says both, such as
            `{"split": "samples", "shards": (3, 1)}`. `"chief"`, or
            None, leaves a layer whole on the chief, as in
            `{"stem.*": None, "block[1-3].*": "samples"}`.
            Layers that are not named are split as the strategy in scope says,
            else equally. `plan="auto"` measures the devices and their links
            and plans the whole model; it prints a line that says what was
            chosen and what is expected of it. `plan="equal"` names no layer,
            so all are split equally unless the strategy in scope says
            otherwise. `plan=None` is `"auto"` if the strategy's plan is, or in
            a cluster whose strategy has neither plan nor shares; else it is
            `"equal"`.
        batch_size: Images of a step, for `"auto"`; None for the batch that the
            model was built for, else 32.
        algorithm: Algorithm of all convolutions, as for `ConvParallel2D`; None
            for that of each layer. With `"auto"`, batch normalizations on the
            chief are computed together with what follows them.
        wire_dtype: Wire dtype of all convolutions, or a mapping by names as in
            `plan`; None for that of each layer.
        moments: Of which samples batch normalization takes the moments in
            training, where convolutions are split by samples. `"all"`: of all,
            as without a split, for which devices wait for one another twice in
            each. `"own"`: each device of its own, as replicas do; that is
            faster, and another training, whose losses are not those of one
            device. Moving statistics are of all samples in either case.
        verbose: Whether to print a line that says how much of the model is
            spread, and what is not. It goes where messages of `fit` go.

    Returns:
        A new model with the same weights, layers' states, optimizer, its
        state, loss and metrics. If `layer.trainable` is set in the original
        model, as in fine-tuning, the new model takes it over.

    Raises:
        ValueError: `model` is not a Keras model, or an argument is wrong.

    Warns:
        UserWarning: Nothing is spread, as there is no convolution, or no
            strategy in scope where one is expected.
    """
    check_model(model)
    if algorithm is not None:
        check_algorithm(algorithm)
    check_moments(moments)
    plan, reason = _chosen(
        model, plan, batch_size, algorithm, wire_dtype, moments
    )
    splits = ByLayer("plan", _loaded(plan))
    _check_used(splits, model)
    wires = _wires(wire_dtype, model)
    # cuDNN chooses on a GPU, where the ops that layers fuse into do not run.
    fuses = algorithm == "auto" and device_type(chief()[0]) == "CPU"
    copier = ParallelCopier(splits, wires, algorithm, fuses, moments)
    copies = copier.copies
    new = copier.copy_of(model)
    place_slots(copies.optimizers)
    copier.finish(model)
    settle_xla(copies.pairs)
    follow(copies.pairs)
    if fuses and chief()[1]:
        hoist_weights_in_predict(new)
    _report.warn(new, algorithm)
    if verbose:
        print_msg(f"{model.name}: {_report.line(new, reason)}")
    return new


def _chosen(
    model: Any,
    given_plan: Any,
    batch_size: int | None,
    algorithm: str | None,
    wire_dtype: Any,
    moments: str,
) -> tuple[Any, str | None]:
    """The plan, as it was given or as it is made now, and the reason for it."""
    plan = _plan_or_default(given_plan)
    if not (isinstance(plan, str) and plan == "auto"):
        return plan, None
    try:
        automatic_plan = _planned(
            model, batch_size, algorithm, wire_dtype, moments
        )
        return _without_split_layers(
            model, automatic_plan
        ), automatic_plan.reason
    except Exception as error:
        # Nobody asked for a plan: the model is split without one, whatever of
        # it cannot be measured.
        if given_plan is not None:
            raise
        first = str(error).partition("\n")[0]
        print_msg(f"{model.name}: not planned. {first}")
        return "equal", None


def _wires(wire_dtype: Any, model: Any) -> ByLayer:
    """The wire dtype of each layer, by its name.

    Raises:
        ValueError: There is no such dtype, or no such layer.
    """
    by_name = isinstance(wire_dtype, Mapping)
    wires = ByLayer("wire_dtype", wire_dtype if by_name else {".*": wire_dtype})
    for wire in wires.values():
        check_wire_dtype(wire)
    if by_name:
        _check_used(wires, model)
    return wires


def _plan_or_default(plan: Any) -> Any:
    """The plan that was given; for None, `"auto"` or `"equal"`.

    A model is planned in a cluster whose strategy has neither plan nor shares.
    """
    if plan is not None:
        return plan
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, ConvParallelStrategy):
        return "equal"
    if strategy.plans_layers:
        return "auto"
    several_devices = strategy.cluster is not None and len(strategy.devices) > 1
    is_planned = strategy.plan or strategy.shares is not None
    return "auto" if several_devices and not is_planned else "equal"


def _planned(
    model: Any,
    batch_size: int | None,
    algorithm: str | None,
    wire_dtype: Any,
    moments: str,
) -> Plan:
    """The plan that the strategy in scope makes, for `plan="auto"`."""
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, ConvParallelStrategy):
        raise ValueError(
            "Expected `parallelize(model, plan='auto')` in the scope of a "
            "ConvParallelStrategy, whose devices are measured: with "
            f"strategy.scope(): ... Received: {type(strategy).__name__}."
        )
    wire = wire_dtype if isinstance(wire_dtype, str) else None
    plan: Plan = strategy.planner().model(
        model, batch_size, wire, algorithm, moments
    )
    return plan


def _without_split_layers(model: Any, plan: Plan) -> Mapping[str, Any]:
    """A plan without layers that have `shards` or `split` of their own."""
    split_layers = {
        layer.name
        for layer in layers_of(model)
        if isinstance(layer, ConvParallel)
        and (layer.shards is not None or layer.split is not None)
    }
    return {name: plan[name] for name in plan if name not in split_layers}


def _loaded(plan: Any) -> Mapping[str, Any]:
    if isinstance(plan, str) and plan == "equal":
        return {}
    if isinstance(plan, str | os.PathLike):
        plan = load(plan)
    if isinstance(plan, Plan):
        _check_devices(plan)
    if not isinstance(plan, Mapping):
        raise ValueError(
            "Expected `plan` to map names of layers, or regular expressions, "
            "to kernels per device, such as {'conv.*': (3, 1)}, or to be the "
            f"path of a plan's file. Received: plan={plan!r}."
        )
    return plan


def _check_devices(plan: Plan) -> None:
    """Raises ValueError if shards would go to other devices than planned."""
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, ConvParallelStrategy):
        return
    if tuple(strategy.devices) != plan.devices:
        raise ValueError(
            f"Expected a plan for the devices of the strategy in scope, "
            f"{list(strategy.devices)}, in this order. Received one for "
            f"{list(plan.devices)}. Plan again, or give the strategy `devices` "
            "in the plan's order."
        )


def _check_used(by_layer: ByLayer, model: Any) -> None:
    """Raises ValueError if a key stands for no convolution of the model."""
    layers = layers_of(model)
    names = [layer.name for layer in layers if _conversion.may_be_split(layer)]
    problem = by_layer.unused(f"'{model.name}'", names)
    if problem:
        raise ValueError(problem)
