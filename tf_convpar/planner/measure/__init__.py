"""Measures devices, links and the rest of a network: what `calibrate` calls.

The only part of the planner that uses TensorFlow.
"""
