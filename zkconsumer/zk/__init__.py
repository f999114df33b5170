"""ZooKeeper: a member's session, the tools' client, and an observer of any group."""
