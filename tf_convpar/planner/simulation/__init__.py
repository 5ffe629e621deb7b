"""Clusters in words, and what changes with them; no hardware."""
