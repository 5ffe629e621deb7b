"""What a training step takes, before it is run: paper 2's guidelines.

Memory of a step (`memory`), the largest and the best mini-batch (`_batch`),
and how many replicas and parameter servers (`_devices`), after Zou et al.
(2017). What `convpar estimate` shows.
"""
