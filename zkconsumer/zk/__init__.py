"""ZooKeeper: the session, the operations on it, and an observer of any group."""
