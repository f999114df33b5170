"""The old consumer's data in ZooKeeper, and the rules by which members use it; without I/O."""
