"""Measures layers, links and updates, and keeps the measurements.

All kinds of plans are based on them. Only what times whole steps knows a plan.
The package needs TensorFlow.
"""

from tf_convpar.planner.measure._layers import Works as Works
from tf_convpar.planner.measure._noise import noise as noise
from tf_convpar.planner.measure._own_thread import (
    in_own_thread as in_own_thread,
)
from tf_convpar.planner.measure._progress import progress as progress
from tf_convpar.planner.measure._updates import slots_of as slots_of
from tf_convpar.planner.measure._whole_steps import step_seconds as step_seconds
from tf_convpar.planner.measure.clock import Clock as Clock
from tf_convpar.planner.measure.links import measure_link as measure_link
