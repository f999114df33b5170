"""asyncio: one task for each stream, and a commit at the end.

    python docs/examples/asynchronous.py ZOOKEEPER GROUP TOPIC STREAMS

Ends when no message has arrived for five seconds, or with Ctrl-C.
"""

from __future__ import annotations

import asyncio
import sys

from zkconsumer import ConsumerConfig, Message
from zkconsumer.aio import ConsumerConnector, Stream
from zkconsumer.errors import ConsumerTimeoutError


async def handle(message: Message[bytes, str]) -> None:
    """Process a message, possibly again: delivery is at least once."""
    await asyncio.sleep(0)
    print(message.topic, message.partition, message.offset, message.value, flush=True)


async def work(stream: Stream[bytes, str]) -> int:
    count = 0
    try:
        async for message in stream:
            await handle(message)
            count += 1
    except ConsumerTimeoutError as nothing:
        print(nothing, file=sys.stderr)
    return count


async def main(zookeeper: str, group: str, topic: str, streams: str) -> None:
    config = ConsumerConfig(
        zookeeper_connect=zookeeper,
        group_id=group,
        auto_offset_reset="smallest",
        consumer_timeout_s=5.0,
    )
    async with ConsumerConnector(config) as connector:
        made = await connector.create_message_streams(
            {topic: int(streams)}, value_decoder=bytes.decode
        )
        counts = await asyncio.gather(*map(work, made[topic]))
        await connector.commit_offsets(timeout_s=30.0)
    print(sum(counts), "messages", file=sys.stderr)


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
