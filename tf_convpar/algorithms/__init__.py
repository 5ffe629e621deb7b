"""How one device computes one convolution; knows nothing of devices."""

from tf_convpar.algorithms._direct import convolve as convolve
