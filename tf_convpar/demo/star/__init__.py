"""What `convpar demo --star` shows: the network and the split of paper 1."""
