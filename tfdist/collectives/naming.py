"""Names of collectives: by their position, never by a running counter of a process."""

import tensorflow as tf

from tfdist.compat.tensorflow import number_of


def name_in_graph(name: str) -> str:
    """Name a collective by its position in the graph, which is equal on all ranks.

    Ranks may trace again at different times, so that a counter would come to differ.

    Args:
        name: What is moved.

    Returns:
        A name of which the graph has no other; outside of graphs, where one call
        follows the other, the name itself.
    """
    if tf.executing_eagerly():
        return name
    graph = tf.compat.v1.get_default_graph()
    # Branches and loops have graphs of their own, which run beside one another.
    while (outer := getattr(graph, "outer_graph", None)) and outer.building_function:
        graph = outer
    # Several replicas may be in one graph: each counts for itself.
    replica = tf.distribute.get_replica_context()
    prefix = "tfdist/" if replica is None else f"tfdist/{number_of(replica)}/"
    # Scopes of Keras count the layers made so far, of which the chief may have more.
    with graph.name_scope(None):
        return str(graph.unique_name(prefix + name)).removeprefix(prefix)
