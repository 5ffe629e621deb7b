"""Keras layers whose kernels are spread over devices."""

from tf_convpar.layers._activations import (
    is_elementwise_activation as is_elementwise_activation,
)
from tf_convpar.layers._activations import (
    is_per_sample_activation as is_per_sample_activation,
)
from tf_convpar.layers._activations import op_activation as op_activation
from tf_convpar.layers._base import ConvParallel as ConvParallel
from tf_convpar.layers._base import takes_shards as takes_shards
from tf_convpar.layers._base import within_region as within_region
from tf_convpar.layers._channel_scaling import Fusable as Fusable
from tf_convpar.layers._channel_scaling import has_note as has_note
from tf_convpar.layers._channel_scaling import is_inference as is_inference
from tf_convpar.layers._channel_scaling import leave_unpadded as leave_unpadded
from tf_convpar.layers._channel_scaling import note_of as note_of
from tf_convpar.layers._channel_scaling import unpadded as unpadded
from tf_convpar.layers._channel_scaling import with_epilogue as with_epilogue
from tf_convpar.layers._chief import chief as chief
from tf_convpar.layers._concatenated_inputs import is_joined as is_joined
from tf_convpar.layers._concatenated_inputs import join as join
from tf_convpar.layers._concatenated_inputs import joined_of as joined_of
from tf_convpar.layers._concatenated_inputs import leave_joined as leave_joined
from tf_convpar.layers._convolution import Conv1D as ConvParallel1D
from tf_convpar.layers._convolution import Conv2D as ConvParallel2D
from tf_convpar.layers._convolution import Conv3D as ConvParallel3D
from tf_convpar.layers._dense import Dense as DenseParallel
from tf_convpar.layers._depthwise import (
    DepthwiseConv1D as DepthwiseConvParallel1D,
)
from tf_convpar.layers._depthwise import (
    DepthwiseConv2D as DepthwiseConvParallel2D,
)
from tf_convpar.layers._files import Attached as Attached
from tf_convpar.layers._files import is_merged as is_merged
from tf_convpar.layers._files import is_parallel as is_parallel
from tf_convpar.layers._files import merged_storage as merged_storage
from tf_convpar.layers._files import recovers as recovers
from tf_convpar.layers._geometries import KINDS as KINDS
from tf_convpar.layers._geometries import convolutions as convolutions
from tf_convpar.layers._geometries import geometry as geometry
from tf_convpar.layers._separable import (
    SeparableConv1D as SeparableConvParallel1D,
)
from tf_convpar.layers._separable import (
    SeparableConv2D as SeparableConvParallel2D,
)
from tf_convpar.layers._split import Split as Split
from tf_convpar.layers._transposed import (
    Conv1DTranspose as ConvParallel1DTranspose,
)
from tf_convpar.layers._transposed import (
    Conv2DTranspose as ConvParallel2DTranspose,
)
from tf_convpar.layers._transposed import (
    Conv3DTranspose as ConvParallel3DTranspose,
)

__all__ = [
    "ConvParallel1D",
    "ConvParallel1DTranspose",
    "ConvParallel2D",
    "ConvParallel2DTranspose",
    "ConvParallel3D",
    "ConvParallel3DTranspose",
    "DenseParallel",
    "DepthwiseConvParallel1D",
    "DepthwiseConvParallel2D",
    "SeparableConvParallel1D",
    "SeparableConvParallel2D",
    "merged_storage",
    "recovers",
]
