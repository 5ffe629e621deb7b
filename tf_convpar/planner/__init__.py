"""How many kernels each device gets, and what comes of it.

Measured (`calibrate`), proven (`plan`) and predicted without hardware
(`simulate`). All that is exported is of `star`, the star of paper 1; beside it
are `measure` and units, which no planner has to itself. TensorFlow is imported
where something is measured, and not before.
"""

from typing import Any

from tf_convpar.planner.star import Calibration as Calibration
from tf_convpar.planner.star import Convolution as Convolution
from tf_convpar.planner.star import Device as Device
from tf_convpar.planner.star import Link as Link
from tf_convpar.planner.star import Network as Network
from tf_convpar.planner.star import Plan as Plan
from tf_convpar.planner.star import Prediction as Prediction
from tf_convpar.planner.star import Times as Times
from tf_convpar.planner.star import from_json as from_json
from tf_convpar.planner.star import load as load
from tf_convpar.planner.star import network as network
from tf_convpar.planner.star import plan as plan
from tf_convpar.planner.star import plan_of as plan_of
from tf_convpar.planner.star import predict as predict
from tf_convpar.planner.star import save as save
from tf_convpar.planner.star import simulate as simulate
from tf_convpar.planner.star import to_json as to_json


def __getattr__(name: str) -> Any:
    if name == "plan_model":
        from tf_convpar.planner import _planning

        return _planning.plan_model
    if name == "profile":
        from tf_convpar.planner.measure import _profile

        return _profile.profile
    if name in ("calibrate", "of_model"):
        from tf_convpar.planner import star

        return getattr(star, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
