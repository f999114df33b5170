"""`zkconsumer demo`: a group that grows, shrinks and loses a member, watched from outside.

- `play`: what happens, in order
- `member`: one consumer, a process of its own, that notes what it was handed
- `scene`: what the members note and what an observer sees
- `judge`: what that means, pure
- `view`: how it looks meanwhile, and the table at the end
"""
