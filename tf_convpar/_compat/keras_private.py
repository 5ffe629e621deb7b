"""What of Keras is private and used by this package, each with its reason.

`tests/test_compat.py` looks for all of it in the Keras that is installed.
"""

from __future__ import annotations

from tf_convpar._compat._private import Private

# Private objects of Keras, by the names by which they are imported from here.
NAMES = {
    "CompileLoss": Private(
        "keras.src.trainers.compile_utils:CompileLoss",
        "knowing what `compile` has made, by the package it is of",
    ),
    "DotNotTrackScope": Private(
        "keras.src.utils.tracking:DotNotTrackScope",
        "copies of functional models, whose attributes are tracked already",
    ),
    "Functional": Private(
        "keras.src.models.functional:Functional",
        "telling models that have a graph, which `keras.Model` may be or not",
    ),
    "Tracker": Private(
        "keras.src.utils.tracking:Tracker",
        "copies of what tracks variables, which goes by identity",
    ),
    "get_global_attribute": Private(
        "keras.src.backend.common.global_state:get_global_attribute",
        "telling predictions from steps of training",
    ),
    "get_keras_mask": Private(
        "keras.src.backend.common.masking:get_keras_mask",
        "masks of tensors that are in shards",
    ),
    "in_stateless_scope": Private(
        "keras.src.backend.common.stateless_scope:in_stateless_scope",
        "calls with values from outside, for which layers are plain ones",
    ),
    "numbers_of": Private(
        "keras.src.utils.python_utils:pythonify_logs",
        "logs of replicas, with metrics that are vectors",
    ),
    "model_supports_jit": Private(
        "keras.src.trainers.trainer:model_supports_jit",
        "models that XLA may compile once they are merged",
    ),
    "print_msg": Private(
        "keras.src.utils.io_utils:print_msg",
        "messages where those of `fit` go",
    ),
    "set_keras_mask": Private(
        "keras.src.backend.common.masking:set_keras_mask",
        "masks of tensors that were in shards",
    ),
}

# Operations between layers, as in `x + shortcut`, that have rules.
OPERATIONS = {
    name: Private(f"keras.src.ops.{module}:{name}", f"the rule of {name}")
    for module, names in {
        "nn": "Elu Gelu HardSigmoid HardSilu LeakyRelu LogSoftmax Relu Relu6 "
        "Selu Sigmoid Silu Softmax Softplus",
        "numpy": "Absolute Add Clip Concatenate ExpandDims Max Maximum Mean "
        "Min Minimum Multiply Square Subtract Sum Tanh TrueDivide",
    }.items()
    for name in names.split()
}

# Private members, by their class, each with its reason; overridden ones too.
MEMBERS: dict[str, dict[str, str]] = {
    "keras.layers.Layer": {
        "_call_has_training_arg": "measuring layers as they are in training",
        "_flatten_layers": "the layers within a layer, however deep",
        "_inbound_nodes": "copies, which nobody has called yet",
        "_loss_ids": "copies, which have no losses yet",
        "_losses": "copies, which have no losses yet",
        "_non_trainable_variables": "weights without those of inner layers",
        "_outbound_nodes": "copies, which nobody has called yet",
        "_seed_generators": "layers that keep a state of their own",
        "_track_variable": "kernels that are made in shards",
        "_tracker": "graphs that a sequential model has left behind",
        "_trainable_variables": "weights without those of inner layers",
        "rematerialized_call": "layers in a `RematScope`, on shards",
    },
    "keras.Sequential": {
        "_functional": "the graph that a sequential model makes",
    },
    "keras.src.models.functional.Functional": {
        "_inputs": "copies, whose graph is made anew",
        "_inputs_struct": "copies, whose graph is made anew",
        "_nodes": "copies, whose graph is made anew",
        "_nodes_by_depth": "the calls of a graph, in their order",
        "_operations": "copies, whose graph is made anew",
        "_operations_by_depth": "copies, whose graph is made anew",
        "_outputs": "copies, whose graph is made anew",
        "_outputs_struct": "copies, whose graph is made anew",
    },
    "keras.src.ops.node.Node": {
        "arguments": "what a layer of a graph is given",
        "input_tensors": "what a layer of a graph is given",
        "is_input": "where a graph begins",
        "operation": "which layer is called",
        "outputs": "what a layer of a graph makes",
        "parent_nodes": "whether a layer before another one learns",
    },
    "keras.src.ops.symbolic_arguments.SymbolicArguments": {
        "args": "what a layer of a graph is given",
        "fill_in": "calling a copied model where its model was called",
        "kwargs": "what a layer of a graph is given",
    },
    "keras.KerasTensor": {
        "_keras_history": "which operation a tensor is of",
    },
    "keras.Model": {
        "_compute_loss": "replicas, with a `compute_loss` of older programs",
        "_distribute_strategy": "copies, which the strategy in scope trains",
        "_eval_epoch_iterator": "copies, which evaluate nothing yet",
        "_initial_epoch": "replicas that `BackupAndRestore` resumes",
        "_should_eval": "replicas' `fit(validation_freq=)`",
    },
    "keras.Variable": {
        "_constraint": "constraints that work where the shards are",
        "_dtype": "the dtype of storage, which autocasting does not change",
        "_initialize": "storage in shards",
        "_regularizer": "regularizers that work where the shards are",
        "_trainable": "what tapes watch, whatever Keras has frozen",
        "_value": "storage in shards",
    },
    "keras.export.ExportArchive": {
        "_all_variables": "exports, which hold no shards",
    },
    "keras.optimizers.Adam": {
        "_momentums": "updates by one op",
        "_velocities": "updates by one op",
    },
    "keras.optimizers.Optimizer": {
        "_get_variable_index": "updates by one op",
        "_iterations": "counting steps where gradients are accumulated",
        "_learning_rate": "steps that are made again at their rate",
        "_distribution_strategy": "slots beside their shards",
        "_trainable_variables": "slots, which go by the order of these",
        "_trainable_variables_indices": "copies, which go by identity",
        "_var_key": "copies, which go by identity",
    },
    "keras.src.utils.tracking.Tracker": {
        "config": "copies of what tracks variables",
        "stored_ids": "copies of what tracks variables",
    },
}
