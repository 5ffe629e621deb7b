"""The `convpar` program: one file for each sub-command."""
