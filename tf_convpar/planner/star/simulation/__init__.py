"""Clusters in words, and what changes with them; no hardware."""

from tf_convpar.planner.star.simulation._describe import describe as describe
from tf_convpar.planner.star.simulation._networks import network as network
from tf_convpar.planner.star.simulation._sweep import simulate as simulate
