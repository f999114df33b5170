"""`zkconsumer demo`: a group that grows, shrinks and loses a member, watched from outside.

- `play`: what happens, in order
- `member`: one consumer, a process of its own, that notes what it was handed
- `scene`: what the members note and what an observer sees
- `judge`: what that means, pure
- `view`: how it looks meanwhile, and the table at the end

`scripts/pipeline_demo`: a Spark query and a JVM consumer in one group, watched from outside.

- `play`: what happens, in order
- `query`: the Spark query, a program of its own, which writes Parquet
- `console`: the JVM consumer, Kafka's own console consumer of 1.1.1
- `ledger`: what both have been given, as it stands in their files
- `judge`: what that means, pure
"""

from __future__ import annotations
