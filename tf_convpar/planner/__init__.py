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
from tf_convpar.planner.simulation import Simulation as Simulation
from tf_convpar.plans import Plan as Plan
from tf_convpar.plans import Prediction as Prediction

if TYPE_CHECKING:
    from tf_convpar.planner._arrival_ways import cycle_of as cycle_of
    from tf_convpar.planner._compare import advice as advice
    from tf_convpar.planner._compare import compare as compare
    from tf_convpar.planner._compare import legend as legend
    from tf_convpar.planner._costs import Costs as Costs
    from tf_convpar.planner._draw_ways import draw_ways as draw_ways
    from tf_convpar.planner._link import link_of as link_of
    from tf_convpar.planner._plan import by_samples as by_samples
    from tf_convpar.planner._plan import plan as plan
    from tf_convpar.planner._plan import plan_graph as plan_graph
    from tf_convpar.planner._plan import unsplit_plan as unsplit_plan
    from tf_convpar.planner._predict_plan import plan_of as plan_of
    from tf_convpar.planner._replica_ways import (
        beside_backward as beside_backward,
    )
    from tf_convpar.planner._simulate import describe as describe
    from tf_convpar.planner._simulate import described as described
    from tf_convpar.planner._simulate import multiplications as multiplications
    from tf_convpar.planner._simulate import operations as operations
    from tf_convpar.planner._simulate import simulate as simulate
    from tf_convpar.planner._sweep import SWEEPS as SWEEPS
    from tf_convpar.planner._sweep import SweepRow as SweepRow
    from tf_convpar.planner._sweep import sweep as sweep
    from tf_convpar.planner._sweep_ways import machines as machines
    from tf_convpar.planner._sweep_ways import sweep_ways as sweep_ways
    from tf_convpar.planner._tables import layer_table as layer_table
    from tf_convpar.planner._tables import link_table as link_table
    from tf_convpar.planner._tables import preset_table as preset_table
    from tf_convpar.planner._tables import way_table as way_table
    from tf_convpar.planner._ways_to_train import Arguments as Arguments
    from tf_convpar.planner._ways_to_train import Way as Way
    from tf_convpar.planner.measure._calibrate import calibrate as calibrate
    from tf_convpar.planner.vary import with_bandwidth as with_bandwidth
    from tf_convpar.planner.vary import with_devices as with_devices

# Names whose modules need TensorFlow, and these modules.
_LATER = {
    "Arguments": "_ways_to_train",
    "Costs": "_costs",
    "SWEEPS": "_sweep",
    "SweepRow": "_sweep",
    "Way": "_ways_to_train",
    "advice": "_compare",
    "beside_backward": "_replica_ways",
    "by_samples": "_plan",
    "calibrate": "measure._calibrate",
    "compare": "_compare",
    "cycle_of": "_arrival_ways",
    "describe": "_simulate",
    "described": "_simulate",
    "draw_ways": "_draw_ways",
    "layer_table": "_tables",
    "legend": "_compare",
    "link_of": "_link",
    "link_table": "_tables",
    "machines": "_sweep_ways",
    "multiplications": "_simulate",
    "operations": "_simulate",
    "plan": "_plan",
    "plan_graph": "_plan",
    "plan_of": "_predict_plan",
    "preset_table": "_tables",
    "simulate": "_simulate",
    "sweep": "_sweep",
    "sweep_ways": "_sweep_ways",
    "unsplit_plan": "_plan",
    "way_table": "_tables",
    "with_bandwidth": "vary",
    "with_devices": "vary",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
