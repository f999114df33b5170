"""The phases of a member."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """Where a member stands; every phase ends with the event that its text names."""

    OFFLINE = "offline"  # no connection: Connected
    REGISTERING = "registering"  # creating our id znode: Registered, IdTaken and then Released
    RECOVERING = "recovering"  # reading back what we may own, nothing delivered: Verified
    READING = "reading"  # reading the group: ViewRead
    STOPPING = "stopping"  # the user finishes what moves away: ReleaseReady of all, or the grace
    COMMITTING = "committing"  # storing its positions: the commit's end
    BEFORE_RELEASE = "before_release"  # the user's listener runs: ListenerReturned, or the grace
    RELEASING = "releasing"  # deleting its owner znodes: Released
    CLAIMING = "claiming"  # creating ours: Claimed
    BEFORE_START = "before_start"  # the user's listener runs: ListenerReturned, or the grace
    LOADING = "loading"  # reading offsets of what was claimed: OffsetsLoaded, then fetching starts
    VERIFYING = "verifying"  # re-reading and watching the owner znodes we hold: Verified
    WAITING = "waiting"  # something is missing or held by another: a watch, or the back-off
    SETTLED = "settled"  # owns and serves all that it should
    LEAVING = "leaving"  # committing for the last time
    CLOSED = "closed"
