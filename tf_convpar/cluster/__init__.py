"""The cluster: its tasks, their processes and servers, and their health."""
