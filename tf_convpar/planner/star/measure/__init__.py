"""Measures devices, links and the rest of a network.

This is the only part of the star that uses TensorFlow. `calibrate` is its front
door. `LayerByLayer` is for strategies that plan each layer by itself.
"""

from tf_convpar.planner.star.measure._automatic import (
    LayerByLayer as LayerByLayer,
)
from tf_convpar.planner.star.measure._calibrate import calibrate as calibrate
from tf_convpar.planner.star.measure._model import of_model as of_model
