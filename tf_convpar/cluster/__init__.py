"""The cluster: its tasks, their processes and servers, and how they fare."""
