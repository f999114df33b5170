"""The history of groups, read from ZooKeeper's transaction logs and snapshots."""
