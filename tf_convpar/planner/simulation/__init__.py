"""Clusters in words, and what changes with them; no hardware."""

from tf_convpar.planner.simulation._describe import describe as describe
from tf_convpar.planner.simulation._networks import network as network
from tf_convpar.planner.simulation._sweep import simulate as simulate
