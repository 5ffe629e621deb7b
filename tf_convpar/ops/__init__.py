"""The C++ ops on shards and channels, and their pure-TensorFlow twins.

Importing this package loads nothing: the compiled library is loaded at the
first call, or by `load()`.
"""

from ._activation_gradients import activated_gradient as activated_gradient
from ._activation_gradients import activated_sums as activated_sums
from ._activation_gradients import biased as biased
from ._activation_gradients import biased_gradient as biased_gradient
from ._activation_gradients import passed_back as passed_back
from ._activations import ACTIVATIONS as ACTIVATIONS
from ._bias import bias_gradient as bias_gradient
from ._bias import copied as copied
from ._bias import leave_balanced as leave_balanced
from ._blocks import BLOCK as BLOCK
from ._blocks import SCALE_BYTES as SCALE_BYTES
from ._blocks import decode_blocks as decode_blocks
from ._blocks import encode_blocks as encode_blocks
from ._channels import channel_moments as channel_moments
from ._channels import channel_sums as channel_sums
from ._channels import scale_channels as scale_channels
from ._convolution import convolution as convolution
from ._depthwise import depthwise as depthwise
from ._depthwise import depthwise_kernel_gradient as depthwise_kernel_gradient
from ._epilogue import NOTHING as NOTHING
from ._epilogue import Epilogue as Epilogue
from ._flat_values import pack as pack
from ._flat_values import unchanged as unchanged
from ._flat_values import unpack as unpack
from ._functions import release_functions as release_functions
from ._graphs import of_this_graph as of_this_graph
from ._joined_images import JoinedImages as JoinedImages
from ._kernels import device_types as device_types
from ._kernels import joins_on as joins_on
from ._kernels import native_on as native_on
from ._library import BuildReport as BuildReport
from ._library import build_report as build_report
from ._library import functions as functions
from ._library import load as load
from ._library import module as module
from ._normalization import group_normalization as group_normalization
from ._normalization import layer_normalization as layer_normalization
from ._pieces import Cuts as Cuts
from ._pieces import from_pieces as from_pieces
from ._pieces import to_pieces as to_pieces
from ._pooling import max_pool as max_pool
from ._pooling import pool as pool
from ._row_exchange import connect as connect
from ._row_exchange import exchange_rows as exchange_rows
from ._row_exchange import listen as listen
from ._shards import concat_shards as concat_shards
from ._shards import split_shards as split_shards
from ._statistics import affine as affine
from ._statistics import (
    batch_normalization_gradient as batch_normalization_gradient,
)
from ._statistics import merged_moments as merged_moments
from ._statistics import moved_moments as moved_moments
