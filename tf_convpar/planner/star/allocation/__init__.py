"""Proven optima: how many kernels each device gets."""

from tf_convpar.planner.star.allocation._optimum import allocate as allocate
from tf_convpar.planner.star.allocation._optimum import best_split as best_split
