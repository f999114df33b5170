"""Groups that a bridge divides among old and new members: one ZooKeeper, one coordinator."""
