"""What `convpar demo` shows: plain Keras beside models that are split."""
