"""What devices run in a call, after TensorFlow has inlined and pruned it."""

from tensorflow.python.eager import context


def nodes_by_device(call):
    """Nodes of the largest graph that each device runs in a call."""
    now = context.context()
    now.enable_graph_collection()
    try:
        call()
        found = {}
        for function in now.export_run_metadata().function_graphs:
            for graph in function.partition_graphs:
                device = graph.node[0].device
                if len(graph.node) > len(found.get(device, ())):
                    found[device] = graph.node
    finally:
        now.disable_graph_collection()
    return found
