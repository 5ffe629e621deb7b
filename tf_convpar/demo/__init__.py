"""What `convpar demo` shows: plain Keras beside a planned, parallel model."""
