"""Rules by which Keras layers work on shards, one for each kind of layer.

To add one, write a subclass of `Rule` (shards of channels) or of `SampleRule`
(shards of samples) in a file of this folder, and list it here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tf_convpar.sharding.rules._op_call import OpCall as OpCall
from tf_convpar.sharding.rules._rule import CHIEF as CHIEF
from tf_convpar.sharding.rules._rule import Rule as Rule
from tf_convpar.sharding.rules.activation import Activations
from tf_convpar.sharding.rules.activation import SlopeOfEachChannel
from tf_convpar.sharding.rules.dense import Dense
from tf_convpar.sharding.rules.dense import Flatten
from tf_convpar.sharding.rules.dense import is_large as is_large
from tf_convpar.sharding.rules.dropout import Dropout
from tf_convpar.sharding.rules.each_sample import Activation
from tf_convpar.sharding.rules.each_sample import AlongAnAxis
from tf_convpar.sharding.rules.each_sample import Attention
from tf_convpar.sharding.rules.each_sample import EachSample
from tf_convpar.sharding.rules.each_sample import Einsum
from tf_convpar.sharding.rules.each_sample import Recurrent
from tf_convpar.sharding.rules.each_sample import SampleRule as SampleRule
from tf_convpar.sharding.rules.each_sample import each_alone as each_alone
from tf_convpar.sharding.rules.merging import Concatenate
from tf_convpar.sharding.rules.merging import Elementwise
from tf_convpar.sharding.rules.moments import MomentsOfAll
from tf_convpar.sharding.rules.moments import MomentsOfOwn as MomentsOfOwn
from tf_convpar.sharding.rules.noise import Drawing
from tf_convpar.sharding.rules.normalization import BatchNormalization
from tf_convpar.sharding.rules.operation import Operation
from tf_convpar.sharding.rules.operation import OperationOnSamples
from tf_convpar.sharding.rules.spatial import GlobalPooling
from tf_convpar.sharding.rules.spatial import Pixels
from tf_convpar.sharding.rules.spatial import Spatial
from tf_convpar.sharding.rules.users_layer import OfTheUser

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

SAMPLE_RULES: tuple[SampleRule, ...] = (
    EachSample(),
    AlongAnAxis(),
    Einsum(),
    Activation(),
    Drawing(),
    Recurrent(),
    Attention(),
    OperationOnSamples(),
)


# Of which samples a batch normalization by samples takes its moments.
MOMENTS: dict[str, SampleRule] = {"all": MomentsOfAll(), "own": MomentsOfOwn()}


def check_moments(moments: str) -> None:
    """Raises ValueError unless `moments` is one of `MOMENTS`."""
    if moments not in MOMENTS:
        raise ValueError(
            f"Expected `moments` to be one of {(*MOMENTS,)}. Received: "
            f"moments={moments!r}."
        )


def rule_for(layer: Any) -> Rule | None:
    """The rule of a layer for shards of channels; None if it has none.

    The inputs of a layer without a rule are joined. Only the listed types
    themselves have rules, because a subclass may do anything.
    """
    for rule in RULES:
        if type(layer) in rule.layers:
            return rule
    return None


def sample_rule_for(
    node: Any, shapes: Sequence[Any], moments: str = "all"
) -> SampleRule | None:
    """The rule of a layer for shards of samples; None if it has none.

    Args:
        node: Call of a built layer, or of an operation, in a model.
        shapes: Shapes of its inputs and outputs, with the batch.
        moments: Of which samples a batch normalization takes its moments, as
            for `parallelize`.
    """
    layer = node.operation
    for rule in (MOMENTS[moments], *SAMPLE_RULES):
        if type(layer) in rule.layers and rule.holds(layer, shapes):
            return rule
    user_rule = OfTheUser()
    holds = user_rule.holds(layer, shapes)
    return (
        user_rule if holds or user_rule.holds_for_call(node, shapes) else None
    )
