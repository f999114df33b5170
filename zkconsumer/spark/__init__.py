"""Legacy groups on Spark: a source, a sink of progress, and tables. Needs `zkconsumer[spark]`."""
