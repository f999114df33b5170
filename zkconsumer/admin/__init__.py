"""The operator's tools as Python calls: read groups, plan changes, apply and undo them.

Reading (`images`, `lag`, `doctor`, `explain`) writes nothing. Changes are plans (`plan`), which
`changes` and `moving` make and `undo` makes backwards; `apply` makes them happen, and besides the
imitations of Kafka's old tools (`legacy_writes`) nothing else writes.
"""
