"""Regions: feature maps that stay in shards from layer to layer."""

from tf_convpar.sharding import (
    _graph as _graph,  # wraps `Functional._run_through_graph`
)
from tf_convpar.sharding import (
    _summary as _summary,  # wraps `keras.Model.summary`
)
from tf_convpar.sharding._merge import merge as merge
from tf_convpar.sharding._parallelize import parallelize as parallelize
from tf_convpar.sharding._traffic import Traffic as Traffic
from tf_convpar.sharding._traffic import step_traffic as step_traffic
