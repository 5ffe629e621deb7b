"""Measures links, updates and machines, and keeps what was measured.

What any plan goes by, whatever it splits; nothing here knows of a plan. Uses
TensorFlow.
"""
