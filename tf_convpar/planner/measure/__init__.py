"""Measures layers, links and updates, and keeps the measurements.

All kinds of plans are based on them. Only what times whole steps knows a plan.
The package needs TensorFlow.
"""

from tf_convpar.planner.measure._clock import Clock as Clock
from tf_convpar.planner.measure._links import measure_link as measure_link
from tf_convpar.planner.measure._noise import noise as noise
from tf_convpar.planner.measure._progress import progress as progress
from tf_convpar.planner.measure._whole_steps import step_seconds as step_seconds
