"""Private parts of Keras and TensorFlow that this package uses or replaces.

Nothing outside of this folder imports `keras.src` or `tensorflow.python`, and
nothing is replaced but by `patches.replace`. `tests/test_compat.py` names what
a newer version lacks.
"""
