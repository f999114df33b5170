"""Three demonstrations on real servers.

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

`scripts/history_demo`: the history of a group under faults, read on a Spark cluster.

- `history`: the course of events, the pipeline, and the tables read back from its Parquet files
- `history_scene`: the servers, the members, and their faults
- `history_charts`: the charts of the report
"""

from __future__ import annotations
