"""Private parts of TensorFlow that this package uses.

As in `tf_convpar._compat.keras`, names are looked up when they are imported
from here, private members are read by functions, and `NAMES` and `MEMBERS` list
both. `tf.__internal__` is meant for Keras, and not promised either.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from tf_convpar._compat._private import Private

# Private objects, by the names under which they are imported from here.
NAMES = {
    "BatchableTypeSpec": Private(
        "tensorflow.python.framework.type_spec:BatchableTypeSpec",
        "jacobians, which stack what is in shards",
    ),
    "Bind": Private(
        "tensorflow.python.ops.custom_gradient:Bind",
        "copies of layers that hold `keras.remat` of their own methods",
    ),
    "CompositeTensor": Private(
        "tensorflow:__internal__.CompositeTensor",
        "tensors in shards, as one argument of TensorFlow's functions",
    ),
    "CompositeTensorGradient": Private(
        "tensorflow.python.framework.composite_tensor_gradient:"
        "CompositeTensorGradient",
        "gradients in shards, which tapes ask for",
    ),
    "FuncGraph": Private(
        "tensorflow:__internal__.FuncGraph",
        "tracing an update without running it",
    ),
    "OneDeviceExtended": Private(
        "tensorflow.python.distribute.one_device_strategy:OneDeviceExtended",
        "the strategy of one replica",
    ),
    "OneDeviceReplicaContext": Private(
        "tensorflow.python.distribute.one_device_strategy:"
        "_OneDeviceReplicaContext",
        "the one replica, whose all-reduce has nothing to do",
    ),
    "OpError": Private(
        "tensorflow.python.framework.errors_impl:OpError",
        "errors of a server, in a process that has the runtime alone",
    ),
    "ResourceVariable": Private(
        "tensorflow.python.ops.resource_variable_ops:ResourceVariable",
        "shards, whose devices no strategy chooses, as for `tf.Variable`",
    ),
    "Server": Private(
        "tensorflow.python.training.server_lib:Server",
        "`tf.distribute.Server`, in a process that has the runtime alone",
    ),
    "TFDecorator": Private(
        "tensorflow.python.util.tf_decorator:TFDecorator",
        "copies of functions that TensorFlow has wrapped",
    ),
    "Tensor": Private(
        "tensorflow:__internal__.types.Tensor",
        "tensors in shards, which pass where a tensor is expected",
    ),
    "Trackable": Private(
        "tensorflow:__internal__.tracking.Trackable",
        "copies of what checkpoints follow",
    ),
    "TrackableReference": Private(
        "tensorflow:__internal__.tracking.TrackableReference",
        "copies of what checkpoints follow",
    ),
    "UpdateContext": Private(
        "tensorflow.python.distribute.distribute_lib:UpdateContext",
        "updates of one shard after another",
    ),
    "context": Private(
        "tensorflow.python.eager.context:context",
        "a cluster that loses and gets back tasks",
    ),
    "func_graph": Private(
        "tensorflow.python.framework:func_graph", "freeing what was traced"
    ),
    "get_registered_kernels_for_op": Private(
        "tensorflow.python.framework.kernels:get_registered_kernels_for_op",
        "for which types of devices the compiled ops were built",
    ),
    "gradient_registry": Private(
        "tensorflow.python.framework.ops:gradient_registry",
        "freeing what was traced",
    ),
    "list_local_devices": Private(
        "tensorflow.python.client.device_lib:list_local_devices",
        "the memory of a GPU, in `convpar devices`",
    ),
    "pywrap_tf_session": Private(
        "tensorflow.python.client.pywrap_tf_session",
        "the memory of the devices of all tasks, and ops of a worker",
    ),
    "pywrap_tfe": Private(
        "tensorflow.python:pywrap_tfe",
        "the memory of all tasks' devices, and gradients of what is traced",
    ),
    "save_context": Private(
        "tensorflow.python.saved_model.save_context:_save_context",
        "functions that are traced anew for a file",
    ),
    "should_record_backprop": Private(
        "tensorflow.python.eager.record:should_record_backprop",
        "whether anybody will ask for a gradient",
    ),
    "stop_recording": Private(
        "tensorflow.python.eager.record:stop_recording",
        "passes that say themselves what their gradients are",
    ),
    "wrap_tracked": Private(
        "tensorflow:__internal__.tracking.wrap",
        "copies of containers that checkpoints follow",
    ),
}

# Private members, by their class. Those that this package overrides, or that
# TensorFlow reads of its objects, are among them.
MEMBERS: dict[str, dict[str, str]] = {
    "tensorflow.Variable": {
        "_copy_trackable_to_cpu": "refusing to save shards by themselves",
        "_distribute_strategy": "the strategy of a loop out of any scope",
        "_export_to_saved_model_graph": "refusing to export shards",
        "_restore_from_tensors": "checkpoints, which hold merged kernels",
        "_serialize_to_tensors": "checkpoints, which hold merged kernels",
        "_shared_name": "variables in shards, by which optimizers go",
        "_unique_id": "variables in shards, by which optimizers go",
        "handle": "gradients by shards",
    },
    "tensorflow.TensorSpec": {
        "_batch": "jacobians, which stack what is in shards",
        "_flat_tensor_specs": "jacobians, which stack what is in shards",
        "_from_compatible_tensor_list": "datasets of what is in shards",
        "_to_batched_tensor_list": "what goes over the first axis of shards",
        "_to_tensor_list": "jacobians, which stack what is in shards",
        "_unbatch": "what goes over the first axis of shards",
    },
    "tensorflow.TypeSpec": {
        "_component_specs": "tensors in shards in TensorFlow's functions",
        "_deserialize": "tensors in shards in TensorFlow's functions",
        "_from_components": "tensors in shards in TensorFlow's functions",
        "_serialize": "tensors in shards in TensorFlow's functions",
        "_to_components": "tensors in shards in TensorFlow's functions",
        "value_type": "tensors in shards in TensorFlow's functions",
    },
    "tensorflow.RaggedTensor": {
        "__composite_gradient__": "gradients in shards, which tapes ask for",
        "_type_spec": "tensors in shards in TensorFlow's functions",
    },
    "tensorflow.python.framework.composite_tensor_gradient."
    "CompositeTensorGradient": {
        "get_gradient_components": "gradients in shards",
        "replace_gradient_components": "gradients in shards",
    },
    "tensorflow.python.distribute.one_device_strategy.OneDeviceExtended": {
        "_call_for_each_replica": "a step whose default device is the chief",
        "_container_strategy": "the strategy that this is the extension of",
        "_create_variable": "slots beside their shards",
        "_device": "the chief's device",
        "_distribute_datasets_from_function": "datasets that stay whole",
        "_experimental_distribute_dataset": "datasets that stay whole",
        "_local_results": "what an update returns",
        "_update": "updates of shards where they are",
        "_validate_colocate_with_variable": "slots beside any variable",
        "colocate_vars_with": "slots beside their shards",
    },
    "tensorflow.__internal__.FuncGraph": {
        "_function_captures": "freeing what was traced",
        "_resource_tensor_inputs": "freeing what was traced",
        "_unfeedable_tensors": "freeing what was traced",
        "control_outputs": "freeing what was traced",
        "inputs": "freeing what was traced",
        "outputs": "freeing what was traced",
        "structured_outputs": "freeing what was traced",
    },
    "tensorflow.python.eager.polymorphic_function.concrete_function."
    "ConcreteFunctionGarbageCollector": {
        "_func_graph": "freeing what was traced",
    },
    "tensorflow.RegisterGradient": {
        "_op_type": "freeing what was traced",
    },
    "tensorflow.Graph": {
        "_distribution_strategy_stack": "`clear_session`, and replicas, in a "
        "scope",
        "_variable_creator_stack": "`clear_session`, and replicas, in a scope",
    },
    "tensorflow.python.framework.registry.Registry": {
        "_registry": "freeing what was traced",
    },
    "tensorflow.function": {
        "_clone": "copies of models that hold functions which are traced",
    },
}


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return NAMES[name].found()


def unique_id(variable: Any) -> str:
    """The id by which optimizers tell variables apart."""
    return str(variable._unique_id)


def strategy_of(variable: Any) -> Any:
    """The strategy that was in scope where a variable was made, if any."""
    return getattr(variable, "_distribute_strategy", None)


def server_def() -> Any:
    """A copy of the definition of this process's server and cluster."""
    return copy.deepcopy(NAMES["context"].found()().get_server_def())


def task_addresses() -> dict[tuple[str, int], str]:
    """The address `host:port` of each task, by its job and number."""
    definition = NAMES["context"].found()().get_server_def()
    if definition is None:
        return {}
    return {
        (job.name, index): address
        for job in definition.cluster.job
        for index, address in job.tasks.items()
    }


def change_cluster(server_def: Any) -> None:
    """Changes the cluster; tasks that stay keep their variables."""
    NAMES["context"].found()().update_server_def(server_def)


def memory_limits() -> dict[str, int]:
    """Bytes that TensorFlow may allocate on each device, by full names.

    For a CPU it says 256 MiB, whatever there is.
    """
    context = NAMES["context"].found()()
    context.ensure_initialized()
    session = NAMES["pywrap_tf_session"].found()
    devices = (
        NAMES["pywrap_tfe"].found().TFE_ContextListDevices(context._handle)
    )
    return {
        session.TF_DeviceListName(devices, i): int(
            session.TF_DeviceListMemoryBytes(devices, i)
        )
        for i in range(session.TF_DeviceListCount(devices))
    }


def function_names() -> set[str]:
    """Names of all functions that the runtime has now."""
    return set(NAMES["context"].found()().list_function_names())


def dismantle(graph: Any) -> None:
    """Frees the graph of a function, and gradients that it alone has, once."""
    if graph._function_captures is None:
        return
    NAMES["func_graph"].found().dismantle_func_graph(graph)
    for name in MEMBERS["tensorflow.__internal__.FuncGraph"]:
        setattr(graph, name, None)


def bound_arguments(function: Any) -> tuple[str, list[Any]]:
    """The arguments that TensorFlow's dispatch of unary functions has bound.

    Returns:
        The name of TensorFlow's function, and its arguments beside the tensor.
    """
    names = function.__code__.co_freevars
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    bound = dict(zip(names, cells, strict=True))
    api = bound.get("api", function)
    return api.__name__, [
        *bound.get("args", ()),
        *bound.get("kwargs", {}).values(),
    ]


def is_note_of_checkpoints(name: str) -> bool:
    """Whether an attribute is a note of checkpoints about this object."""
    return name.startswith("_self_")


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Lets tapes record in a function that is traced while they are stopped.

    The function is used again when they are not.
    """
    tapes = NAMES["pywrap_tfe"].found()
    stopped = (
        tapes.TFE_Py_TapeSetIsStopped()
        and not NAMES["context"].found()().executing_eagerly()
    )
    if stopped:
        tapes.TFE_Py_TapeSetRestartOnThread()
    try:
        yield
    finally:
        if stopped:
            tapes.TFE_Py_TapeSetStopOnThread()


def bound_to(function: Any) -> tuple[Any, str]:
    """The object whose method a `tf.function` is, and its name there.

    TensorFlow makes one for each object. None and an empty name for one that is
    of no class.
    """
    # What AutoGraph makes of it takes the place of `__wrapped__`.
    wrapper = function.python_function
    bound: Any = getattr(wrapper, "__original_wrapped__", None)
    owner = getattr(getattr(bound, "__self__", None), "target", None)
    return (None, "") if owner is None else (owner, bound.__name__)


def clone_function(function: Any, python_function: Callable[..., Any]) -> Any:
    """A `tf.function` of other Python code, with the options of `function`."""
    return function._clone(python_function=python_function)


class _PolicyOfOneSave:
    """A policy for variables that is like another one, and equal to none."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)


def of_one_save(options: Any = None) -> Any:
    """Options of a save for which every `tf.function` is traced anew.

    TensorFlow keeps what it has traced by the policy for variables, among
    others. So it uses nothing from before, nor this trace afterwards.

    Args:
        options: `tf.saved_model.SaveOptions` to be like; None for the default.
    """
    import tensorflow as tf

    new = copy.copy(options or tf.saved_model.SaveOptions())
    new.experimental_variable_policy = _PolicyOfOneSave(
        new.experimental_variable_policy
    )
    return new


@contextlib.contextmanager
def saving(options: Any) -> Iterator[None]:
    """A context in which functions are traced as by a save with these options.

    Args:
        options: Options of the save; None for no save, even in such a context.
    """
    context = NAMES["save_context"].found()
    before = context.options() if context.in_save_context() else None
    _enter_save(context, options)
    try:
        yield
    finally:
        _enter_save(context, before)


def _enter_save(context: Any, options: Any) -> None:
    if options is None:
        context.exit_save_context()
    else:
        context.enter_save_context(options)


def stay_in_scope(before: Any, now: Any) -> None:
    """Lets a new default graph have the scopes that were open in the former."""
    now._distribution_strategy_stack = before._distribution_strategy_stack
    now._variable_creator_stack = before._variable_creator_stack


@contextlib.contextmanager
def outside_scopes() -> Iterator[None]:
    """Context in which no scope of a strategy is open, nor one of a device.

    TensorFlow lets no strategy's scope be opened in that of another.
    """
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    strategies = graph._distribution_strategy_stack
    creators = graph._variable_creator_stack
    graph._distribution_strategy_stack = []
    graph._variable_creator_stack = []
    try:
        with tf.device(None):
            yield
    finally:
        graph._distribution_strategy_stack = strategies
        graph._variable_creator_stack = creators
