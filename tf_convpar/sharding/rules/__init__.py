"""How Keras layers work on shards: one rule for each kind.

To add one, write a subclass of `Rule` in a file of this folder, and list it
here.
"""

from __future__ import annotations

from typing import Any

from tf_convpar.sharding.rules._rule import Rule as Rule
from tf_convpar.sharding.rules.activation import Activations
from tf_convpar.sharding.rules.activation import SlopeOfEachChannel
from tf_convpar.sharding.rules.dense import Dense
from tf_convpar.sharding.rules.dense import Flatten
from tf_convpar.sharding.rules.dropout import Dropout
from tf_convpar.sharding.rules.merging import Concatenate
from tf_convpar.sharding.rules.merging import Elementwise
from tf_convpar.sharding.rules.normalization import BatchNormalization
from tf_convpar.sharding.rules.operation import Operation
from tf_convpar.sharding.rules.spatial import GlobalPooling
from tf_convpar.sharding.rules.spatial import Pixels
from tf_convpar.sharding.rules.spatial import Spatial

RULES: tuple[Rule, ...] = (
    Spatial(),
    GlobalPooling(),
    Pixels(),
    Activations(),
    SlopeOfEachChannel(),
    BatchNormalization(),
    Dropout(),
    Elementwise(),
    Concatenate(),
    Operation(),
    Flatten(),
    Dense(),
)


def rule_for(layer: Any) -> Rule | None:
    """The rule of a layer; None where it has none, and joins first.

    A subclass may do anything, so that only the very types have rules.
    """
    for rule in RULES:
        if type(layer) in rule.layers:
            return rule
    return None
