"""The brokers' side: which settings a cluster needs, and fetching from it."""
