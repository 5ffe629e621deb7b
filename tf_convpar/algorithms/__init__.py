"""Algorithms by which one device computes one convolution.

They know nothing of clusters. From the ground up: a `Geometry` is the shape of
a convolution. An `Algorithm` computes its three passes: `_direct`, `_gemm`, and
`_bilinear` by the transforms of `_winograd` or `_fft`. `_names` finds an
algorithm by its name. `_candidates` finds those that are worth a race,
`_measure` runs the race, and `_choose` takes the fastest. `_passes` makes one
convolution of three algorithms. `_convolve` is what layers call.
"""

from tf_convpar.algorithms._algorithm import FORWARD as FORWARD
from tf_convpar.algorithms._algorithm import INPUT_GRADIENT as INPUT_GRADIENT
from tf_convpar.algorithms._algorithm import KERNEL_GRADIENT as KERNEL_GRADIENT
from tf_convpar.algorithms._algorithm import PASSES as PASSES
from tf_convpar.algorithms._algorithm import Algorithm as Algorithm
from tf_convpar.algorithms._algorithm import Geometry as Geometry
from tf_convpar.algorithms._batches import by_measurement as by_measurement
from tf_convpar.algorithms._candidates import workspace_cap as workspace_cap
from tf_convpar.algorithms._choose import ASSUMED_BATCH as ASSUMED_BATCH
from tf_convpar.algorithms._choose import as_layer_of as as_layer_of
from tf_convpar.algorithms._choose import choose as choose
from tf_convpar.algorithms._choose import consult as consult
from tf_convpar.algorithms._choose import describe as describe
from tf_convpar.algorithms._choose import race_geometry as race_geometry
from tf_convpar.algorithms._convolve import Windows as Windows
from tf_convpar.algorithms._convolve import check_algorithm as check_algorithm
from tf_convpar.algorithms._convolve import convolve as convolve
from tf_convpar.algorithms._convolve import in_one_pass as in_one_pass
from tf_convpar.algorithms._groups import depthwise_conv as depthwise_conv
from tf_convpar.algorithms._groups import is_own_depthwise as is_own_depthwise
from tf_convpar.algorithms._measure import runners as runners
from tf_convpar.algorithms._names import by_name as by_name
from tf_convpar.algorithms._names import named as named
from tf_convpar.algorithms._processor import facts as facts
from tf_convpar.algorithms._workspace import threads as threads
