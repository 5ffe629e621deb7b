"""Memory of a training step, by its graph and by TensorFlow's allocator."""
