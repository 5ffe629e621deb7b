"""Proven optima: kernels for each device."""
