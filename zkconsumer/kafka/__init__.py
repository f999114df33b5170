"""The brokers: client settings, fetching messages, logs, and offsets that Kafka stores."""
