"""What only the papers need, which training with the package never enters.

`estimate` has the guidelines of paper 2 (Zou et al., 2017): memory of a step,
mini-batches, numbers of replicas and parameter servers. `star_simulation` has
the clusters and sweeps of paper 1, planned by `planner.star`.
`docs/reproducing-the-papers.md` compares both with what the papers print.
"""
