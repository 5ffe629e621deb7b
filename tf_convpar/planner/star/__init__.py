"""The star of paper 1: every convolution is planned by itself.

The chief sends each device the input, gets back the feature maps of its
kernels, and joins them. `calibrate` measures devices and links. `plan` proves
how many kernels each device should get. TensorFlow is imported only where
something is measured.
"""

import importlib
from typing import Any

from tf_convpar.planner._link import Link as Link
from tf_convpar.planner.star._calibration import KIND as KIND
from tf_convpar.planner.star._calibration import (
    StarCalibration as StarCalibration,
)
from tf_convpar.planner.star._calibration import StarDevice as StarDevice
from tf_convpar.planner.star._calibration import Times as Times
from tf_convpar.planner.star._calibration import from_json as from_json
from tf_convpar.planner.star._calibration import load as load
from tf_convpar.planner.star._calibration import proportional as proportional
from tf_convpar.planner.star._calibration import to_json as to_json
from tf_convpar.planner.star._cost import PHASES as PHASES
from tf_convpar.planner.star._cost import compute_s as compute_s
from tf_convpar.planner.star._cost import predict as predict
from tf_convpar.planner.star._memory import fits as fits
from tf_convpar.planner.star._memory import memory_bytes as memory_bytes
from tf_convpar.planner.star._memory import needed_bytes as needed_bytes
from tf_convpar.planner.star._network import Network as Network
from tf_convpar.planner.star._network import StarConvolution as StarConvolution
from tf_convpar.planner.star._network import fingerprint as fingerprint
from tf_convpar.planner.star._network import network as network
from tf_convpar.planner.star._optimum import allocate as allocate
from tf_convpar.planner.star._optimum import best_split as best_split
from tf_convpar.planner.star._plan import load_plan as load_plan
from tf_convpar.planner.star._plan import plan as plan
from tf_convpar.planner.star._plan import plan_of as plan_of
from tf_convpar.planner.star._plan import single_s as single_s
from tf_convpar.plans import Plan as Plan
from tf_convpar.plans import Prediction as Prediction

# Names whose modules need TensorFlow, and these modules.
_LATER = {
    "star_of": "_of_measurements",
    "calibrate": "_calibrate",
    "of_measurements": "_of_measurements",
    "of_model": "_of_model",
    "quantum_of": "_quantum",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
