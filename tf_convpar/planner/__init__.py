"""Which convolution is split how, and what comes of it.

Measured (`calibrate`) and proven (`plan`) for the graph that runs, or described
(`simulate`). TensorFlow is imported where it is needed, and not before. `star`
plans what paper 1 does.
"""

from typing import Any

from tf_convpar.planner._calibration import Calibration as Calibration
from tf_convpar.planner._calibration import Device as Device
from tf_convpar.planner._calibration import Work as Work
from tf_convpar.planner._calibration_file import load as load
from tf_convpar.planner._calibration_file import save as save
from tf_convpar.planner._link import Link as Link
from tf_convpar.plans import Plan as Plan
from tf_convpar.plans import Prediction as Prediction


def __getattr__(name: str) -> Any:
    if name == "plan":
        from tf_convpar.planner import _plan

        return _plan.plan
    if name == "plan_of":
        from tf_convpar.planner import _plan_of

        return _plan_of.plan_of
    if name == "simulate":
        from tf_convpar.planner import _simulate

        return _simulate.simulate
    if name == "calibrate":
        from tf_convpar.planner.measure import _calibrate

        return _calibrate.calibrate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
