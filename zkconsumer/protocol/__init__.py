"""What the old consumer stores in ZooKeeper, and how members use it; pure functions without I/O."""
