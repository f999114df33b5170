"""The group protocols that replaced ZooKeeper's as state machines: pure, without clock or socket.

`group_events` defines the events of a group's coordinator, and `group_coordinator.step` is the
coordinator of one broker. Requests and responses are the values of `protocol.later.messages`.
"""
