"""The bridge: one process that lets old and new consumers share the partitions of one group.

In ZooKeeper the bridge is a member of the old group: it registers consumers, which claim
partitions as `zkconsumer.member` does. In the brokers' group of the same name, the bridge is a
static member and the leader: it assigns exactly the partitions that it holds in ZooKeeper to the
new members, and none to itself.

`machine` decides, as a pure state machine. `shares` computes how many consumers the bridge
registers, and which partitions a change takes away from it. `process` runs the machine with real
connections.
"""
