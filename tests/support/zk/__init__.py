"""ZooKeeper servers, clients and logs for tests."""
