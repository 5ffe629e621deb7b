"""The strategy, as `tf.distribute` and Keras meet it."""
