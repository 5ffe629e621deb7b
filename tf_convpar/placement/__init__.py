"""Places work on devices: three primitives, exchanges, variables in shards."""

from tf_convpar.placement._cutting import samples as samples
from tf_convpar.placement._cutting import split as split
from tf_convpar.placement._exchange import arranged as arranged
from tf_convpar.placement._exchange import everywhere as everywhere
from tf_convpar.placement._exchange import in_shards as in_shards
from tf_convpar.placement._gradient_pieces import (
    gradient_pieces as gradient_pieces,
)
from tf_convpar.placement._layout import AnyLayout as AnyLayout
from tf_convpar.placement._layout import Layout as Layout
from tf_convpar.placement._layout import SampleLayout as SampleLayout
from tf_convpar.placement._moves import Move as Move
from tf_convpar.placement._moves import Place as Place
from tf_convpar.placement._packs import PACK_BYTES as PACK_BYTES
from tf_convpar.placement._packs import Needed as Needed
from tf_convpar.placement._packs import copies_of as copies_of
from tf_convpar.placement._packs import messages_of as messages_of
from tf_convpar.placement._packs import packed as packed
from tf_convpar.placement._placed_variable import (
    PlacedVariable as PlacedVariable,
)
from tf_convpar.placement._placed_variable import place as place
from tf_convpar.placement._placed_variable import value_of as value_of
from tf_convpar.placement._primitives import broadcast as broadcast
from tf_convpar.placement._primitives import concat_shards as concat_shards
from tf_convpar.placement._primitives import device_type as device_type
from tf_convpar.placement._primitives import on_device as on_device
from tf_convpar.placement._reduction_trees import copy_pairs as copy_pairs
from tf_convpar.placement._reduction_trees import ordered_sum as ordered_sum
from tf_convpar.placement._reduction_trees import sum_pairs as sum_pairs
from tf_convpar.placement._reduction_trees import tree_copies as tree_copies
from tf_convpar.placement._reduction_trees import tree_sum as tree_sum
from tf_convpar.placement._row_exchange import row_ports as row_ports
from tf_convpar.placement._row_exchange import rows_of_all as rows_of_all
from tf_convpar.placement._sample_fractions import (
    parts_of_samples as parts_of_samples,
)
from tf_convpar.placement._sample_fractions import (
    without_gradients as without_gradients,
)
from tf_convpar.placement._send_order import (
    everywhere_in_turn as everywhere_in_turn,
)
from tf_convpar.placement._sharded_ops import map_shards as map_shards
from tf_convpar.placement._sharded_tensor import ShardedTensor as ShardedTensor
from tf_convpar.placement._sharded_tensor import (
    ShardedTensorSpec as ShardedTensorSpec,
)
from tf_convpar.placement._sharded_variable import (
    ShardedVariable as ShardedVariable,
)
from tf_convpar.placement._sharded_variable import shard_scope as shard_scope
from tf_convpar.placement._sharded_variable import sharded_like as sharded_like
from tf_convpar.placement._sharded_variable import standing_for as standing_for
from tf_convpar.placement._update_probe import is_elementwise as is_elementwise
from tf_convpar.placement._update_probe import pick as pick
from tf_convpar.placement._vector_pieces import BLOCK as BLOCK
from tf_convpar.placement._vector_pieces import SCALE_BYTES as SCALE_BYTES
from tf_convpar.placement._vector_pieces import Messages as Messages
from tf_convpar.placement._vector_pieces import check_pushes as check_pushes
from tf_convpar.placement._vector_pieces import check_rounds as check_rounds
from tf_convpar.placement._vector_pieces import check_wire as check_wire
from tf_convpar.placement._vector_pieces import (
    exchange_messages as exchange_messages,
)
from tf_convpar.placement._vector_pieces import (
    fragment_values as fragment_values,
)
from tf_convpar.placement._vector_pieces import piece_sizes as piece_sizes
from tf_convpar.placement._vector_pieces import wire_bytes as wire_bytes
from tf_convpar.placement._vector_slices import (
    consecutive_slices as consecutive_slices,
)
