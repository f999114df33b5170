"""Messages as columns: Fetch requests, record formats and Arrow buffers, without librdkafka."""
