"""`ConvParallelStrategy`, and what connects it to `tf.distribute` and Keras."""
