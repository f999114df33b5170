"""The simulator: the production code on a simulated ZooKeeper, in virtual time."""
