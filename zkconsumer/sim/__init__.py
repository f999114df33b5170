"""The simulator: the production core on a simulated ZooKeeper, in virtual time."""
