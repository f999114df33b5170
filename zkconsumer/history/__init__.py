"""What happened to groups, read from ZooKeeper's transaction logs and snapshots."""
