"""Regions: feature maps that stay in shards from layer to layer."""

from tf_convpar.sharding import (
    _graph_execution as _graph_execution,  # wraps how graphs are run
)
from tf_convpar.sharding import (
    _summary as _summary,  # wraps `keras.Model.summary`
)
from tf_convpar.sharding._attach import OnSamples as OnSamples
from tf_convpar.sharding._attach import OnShards as OnShards
from tf_convpar.sharding._conversion import may_be_split as may_be_split
from tf_convpar.sharding._conversion import planned as planned
from tf_convpar.sharding._fusable import fuses as fuses
from tf_convpar.sharding._fused_normalization import Fused as Fused
from tf_convpar.sharding._keras_graph import graph_of as graph_of
from tf_convpar.sharding._keras_graph import is_graph as is_graph
from tf_convpar.sharding._keras_graph import nodes as nodes
from tf_convpar.sharding._keras_graph import shape_for as shape_for
from tf_convpar.sharding._layer_ops import op_call_of as op_call_of
from tf_convpar.sharding._merge import merge as merge
from tf_convpar.sharding._model_graph import Call as Call
from tf_convpar.sharding._model_graph import Graph as Graph
from tf_convpar.sharding._model_graph import Tensor as Tensor
from tf_convpar.sharding._model_graph import calls_of as calls_of
from tf_convpar.sharding._parallelize import parallelize as parallelize
from tf_convpar.sharding._placement_rules import leading as leading
from tf_convpar.sharding._placement_rules import (
    works_on_channels as works_on_channels,
)
from tf_convpar.sharding._placement_rules import (
    works_on_samples as works_on_samples,
)
from tf_convpar.sharding._relayout import HowSplit as HowSplit
from tf_convpar.sharding._relayout import LayerSplit as LayerSplit
from tf_convpar.sharding._relayout import relayout as relayout
from tf_convpar.sharding._traffic import Traffic as Traffic
from tf_convpar.sharding._traffic import step_traffic as step_traffic
from tf_convpar.sharding._unsplit_convolutions import (
    unsplit_convolutions as unsplit_convolutions,
)
from tf_convpar.sharding._unsplit_convolutions import why_unsplit as why_unsplit
from tf_convpar.sharding._weight_hoisting import (
    HoistedFunction as HoistedFunction,
)
from tf_convpar.sharding.rules import check_moments as check_moments
