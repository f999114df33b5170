"""Two demonstrations, each observed by an independent ZooKeeper client.

`zkconsumer demo`: a group that grows, shrinks and loses a member.

- `group`: the course of events, its live view, and the table at the end
- `group_member`: one consumer in its own process, which records the messages it receives
- `group_scene`: the members' records, and the owners as an observer sees them
- `group_judge`: the check of records and owners (no I/O)

`scripts/pipeline_demo`: a Spark query and a JVM consumer in one group.

- `pipeline`: the course of events, and the JVM consumer (Kafka's console consumer of 1.1.1)
- `pipeline_query`: the Spark query in its own process, which writes Parquet
- `pipeline_ledger`: the messages that both have read, according to their files
- `pipeline_judge`: the check of the files (no I/O)
"""

from __future__ import annotations
