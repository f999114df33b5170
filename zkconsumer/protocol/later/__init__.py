"""The protocols that replaced the ZooKeeper consumer: assignors, partitioners and placement.

Every function is pure and computes what Kafka 3.9.1's own class computes from the same input,
including the order of Java's hash maps where the result depends on it. No module connects to a
broker.
"""
