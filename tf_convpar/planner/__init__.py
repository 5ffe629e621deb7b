"""How many kernels each device gets, and what comes of it.

Measured (`calibrate`), proven (`plan`) and predicted without hardware
(`simulate`). TensorFlow is imported where something is measured, and not
before.
"""

from typing import Any

from tf_convpar.planner._calibration import Calibration as Calibration
from tf_convpar.planner._calibration import Device as Device
from tf_convpar.planner._calibration import Times as Times
from tf_convpar.planner._calibration_file import from_json as from_json
from tf_convpar.planner._calibration_file import load as load
from tf_convpar.planner._calibration_file import save as save
from tf_convpar.planner._calibration_file import to_json as to_json
from tf_convpar.planner._cost import predict as predict
from tf_convpar.planner._link import Link as Link
from tf_convpar.planner._network import Convolution as Convolution
from tf_convpar.planner._network import Network as Network
from tf_convpar.planner._plan import plan as plan
from tf_convpar.planner._plan import plan_of as plan_of
from tf_convpar.planner.simulation import network as network
from tf_convpar.planner.simulation import simulate as simulate
from tf_convpar.plans import Plan as Plan
from tf_convpar.plans import Prediction as Prediction


def __getattr__(name: str) -> Any:
    if name in ("calibrate", "of_model"):
        from tf_convpar.planner import measure

        return getattr(measure, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
