"""`zkconsumer demo`: a group that grows, shrinks and loses a member, on real servers.

- `group`: the course of events, its live view, and the table at the end
- `group_member`: one consumer in its own process, which records the messages it receives
- `group_scene`: the members' records, and the owners as an observer sees them
- `group_judge`: the check of records and owners (no I/O)
"""

from __future__ import annotations
