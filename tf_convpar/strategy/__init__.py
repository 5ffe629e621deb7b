"""The strategy, the cluster it runs on, and the servers of that cluster."""
