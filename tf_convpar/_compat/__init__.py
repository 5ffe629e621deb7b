"""What Keras and TensorFlow keep to themselves, and this package uses.

Nothing outside of this folder imports `keras.src` or `tensorflow.python`. What
a newer version does not have is found by its name (`tests/test_compat.py`).
"""
