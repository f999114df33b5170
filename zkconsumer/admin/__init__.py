"""The operator's tools as Python calls: read groups, plan changes, apply and undo them.

Reading (`images`, `lag`) and computing (`plan`, `resets`, `doctor`, `explain`) know no I/O beyond
what they are given; `apply` is the one module that changes anything.
"""
