"""Copies of Keras models by what they are made of, not by their configs."""

from tf_convpar.copying._copies import Copies as Copies
