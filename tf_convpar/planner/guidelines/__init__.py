"""Guidelines of paper 2 (Zou et al., 2017): batches, devices, servers."""
