"""Callbacks for Keras' `fit`: training that outlives machines."""

from tf_convpar.callbacks._elastic import Elastic as Elastic

__all__ = ["Elastic"]
