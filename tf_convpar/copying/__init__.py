"""Copies of Keras models, made of copies of their parts, not by configs."""

from tf_convpar.copying._copies import Copies as Copies
