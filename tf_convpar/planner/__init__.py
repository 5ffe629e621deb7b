"""Plans how each convolution of a model is split, and predicts the step.

`calibrate` measures devices and links. `plan` proves the best plan for the
graph that runs. `simulate` plans for devices that are only described. `star`
has the plans of paper 1. TensorFlow is imported when it is first needed.
"""

import importlib
from typing import TYPE_CHECKING
from typing import Any

from tf_convpar import units as units
from tf_convpar.planner._calibration import Calibration as Calibration
from tf_convpar.planner._calibration import MeasuredDevice as MeasuredDevice
from tf_convpar.planner._calibration import Work as Work
from tf_convpar.planner._calibration import load as load
from tf_convpar.planner._calibration import to_json as to_json
from tf_convpar.planner._link import Link as Link
from tf_convpar.planner._simulation import Simulation as Simulation
from tf_convpar.plans import Plan as Plan
from tf_convpar.plans import Prediction as Prediction

if TYPE_CHECKING:
    from tf_convpar.planner._compare import advice as advice
    from tf_convpar.planner._compare import compare as compare
    from tf_convpar.planner._compare import legend as legend
    from tf_convpar.planner._draw_ways import draw_ways as draw_ways
    from tf_convpar.planner._plan import plan as plan
    from tf_convpar.planner._predict_plan import plan_of as plan_of
    from tf_convpar.planner._simulate import described as described
    from tf_convpar.planner._simulate import simulate as simulate
    from tf_convpar.planner._sweep import SweepRow as SweepRow
    from tf_convpar.planner._sweep import sweep as sweep
    from tf_convpar.planner._sweep_ways import machines as machines
    from tf_convpar.planner._sweep_ways import sweep_ways as sweep_ways
    from tf_convpar.planner._tables import layer_table as layer_table
    from tf_convpar.planner._tables import link_table as link_table
    from tf_convpar.planner._tables import preset_table as preset_table
    from tf_convpar.planner._tables import way_table as way_table
    from tf_convpar.planner._ways_to_train import Way as Way
    from tf_convpar.planner.measure._calibrate import calibrate as calibrate

# Names whose modules need TensorFlow, and these modules.
_LATER = {
    "SweepRow": "_sweep",
    "Way": "_ways_to_train",
    "advice": "_compare",
    "calibrate": "measure._calibrate",
    "compare": "_compare",
    "described": "_simulate",
    "draw_ways": "_draw_ways",
    "layer_table": "_tables",
    "legend": "_compare",
    "link_table": "_tables",
    "machines": "_sweep_ways",
    "plan": "_plan",
    "plan_of": "_predict_plan",
    "preset_table": "_tables",
    "simulate": "_simulate",
    "sweep": "_sweep",
    "sweep_ways": "_sweep_ways",
    "way_table": "_tables",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
