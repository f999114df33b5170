"""Read two topics with a JVM consumer's properties file, one by message and one by batch.

    python docs/examples/two_topics.py consumer.properties

Set `consumer.timeout.ms` in the file; without it, the first loop ends only at the shutdown.
"""

from __future__ import annotations

import sys

from zkconsumer import ConsumerConfig, ConsumerConnector, ConsumerTimeoutError


def main(properties: str) -> None:
    config = ConsumerConfig.from_properties(properties)
    with ConsumerConnector(config) as connector:
        streams = connector.create_message_streams({"orders": 2, "payments": 1})

        try:
            for message in streams["payments"][0]:
                print(message.partition, message.offset, message.key, message.value)
        except ConsumerTimeoutError as error:
            print(error)

        for stream in streams["orders"]:  # usually, each stream has a separate thread
            batch = stream.poll(max_messages=1000, timeout_s=10.0)
            tokens = sorted({message.token for message in batch})
            print(len(batch), "messages under fencing tokens", tokens)

        connector.commit_offsets()  # covers every message delivered so far
        print(connector.status(), connector.metrics())


if __name__ == "__main__":
    main(*sys.argv[1:])
