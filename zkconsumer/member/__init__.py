"""A group member as a state machine, and its ZooKeeper operations as generators."""
