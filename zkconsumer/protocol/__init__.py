"""The old consumer's data in ZooKeeper, and the members' rules for this data; without I/O."""
