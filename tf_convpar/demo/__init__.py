"""What `convpar demo` shows: the same training on one device and split."""
