"""What Keras and TensorFlow keep to themselves, and this package uses.

Nothing outside of this folder imports `keras.src` or `tensorflow.python`, and
nothing puts anything in the place of theirs but by `patches.replace`. What a
newer version does not have is found by its name (`tests/test_compat.py`).
"""
