"""Algorithms by which one device computes one convolution.

They know nothing of clusters. From the ground up: a `Geometry` is the shape of
a convolution. An `Algorithm` computes its three passes: `_direct`, `_gemm`, and
`_bilinear` by the transforms of `winograd` or `fft`. `_names` finds an
algorithm by its name. `candidates` finds those that are worth a race,
`race` runs the race, and `_choose` takes the fastest. `_passes` makes one
convolution of three algorithms. `_convolve` is what layers call.
"""

from tf_convpar.algorithms._algorithm import FORWARD as FORWARD
from tf_convpar.algorithms._algorithm import INPUT_GRADIENT as INPUT_GRADIENT
from tf_convpar.algorithms._algorithm import KERNEL_GRADIENT as KERNEL_GRADIENT
from tf_convpar.algorithms._algorithm import PASSES as PASSES
from tf_convpar.algorithms._algorithm import Algorithm as Algorithm
from tf_convpar.algorithms._algorithm import Geometry as Geometry
from tf_convpar.algorithms._batches import by_measurement as by_measurement
from tf_convpar.algorithms._bilinear import Bilinear as Bilinear
from tf_convpar.algorithms._bilinear import instruction_set as instruction_set
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
from tf_convpar.algorithms._decide import MARGIN as MARGIN
from tf_convpar.algorithms._decide import budget_factor as budget_factor
from tf_convpar.algorithms._decide import decide as decide
from tf_convpar.algorithms._decide import round_ratios as round_ratios
from tf_convpar.algorithms._direct import Direct as Direct
from tf_convpar.algorithms._groups import depthwise_conv as depthwise_conv
from tf_convpar.algorithms._groups import is_own_depthwise as is_own_depthwise
from tf_convpar.algorithms._names import Choice as Choice
from tf_convpar.algorithms._names import by_name as by_name
from tf_convpar.algorithms._names import named as named
from tf_convpar.algorithms._stages import Program as Program
from tf_convpar.algorithms._stages import Stage as Stage
from tf_convpar.algorithms._workspace import Processor as Processor
from tf_convpar.algorithms._workspace import threads as threads
from tf_convpar.algorithms.candidates import workspace_cap as workspace_cap
from tf_convpar.algorithms.processor import facts as facts
from tf_convpar.algorithms.race import runners as runners
