"""What `convpar demo` shows: one training on one device, and split."""
