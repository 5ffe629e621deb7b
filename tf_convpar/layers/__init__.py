"""Keras layers whose kernels are spread over devices."""

from tf_convpar.layers._conv2d import Conv2D as ConvParallel2D
from tf_convpar.layers._files import merged_storage as merged_storage
from tf_convpar.layers._traffic import Traffic as Traffic
from tf_convpar.layers._traffic import step_traffic as step_traffic

__all__ = ["ConvParallel2D", "Traffic", "merged_storage", "step_traffic"]
