"""asyncio: consume, and answer HTTP health checks at the same time.

    python docs/examples/health.py ZOOKEEPER GROUP TOPIC PORT

`GET /` answers 200 while the member works, and 503 if it has failed or waits for something. The
body is JSON with the phase and the lag. Ends with Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys

from zkconsumer import ConsumerConfig, Message, TopicPartition, ZkConsumerError
from zkconsumer.aio import ConsumerConnector, Stream


async def handle(message: Message[bytes, bytes]) -> None:
    """Process a message, possibly again: delivery is at least once."""
    await asyncio.sleep(0)
    print(message.partition, message.offset, message.value, flush=True)


async def consume(stream: Stream[bytes, bytes]) -> None:
    while True:
        try:
            async for message in stream:
                await handle(message)
            return
        except ZkConsumerError as error:
            if error.fatal:
                raise
            print(error, file=sys.stderr)


def health(connector: ConsumerConnector) -> tuple[int, dict[str, object]]:
    """Return the HTTP status of this member, and the body of the response."""
    status = connector.status()
    lag = {str(tp): behind for tp, behind in connector.lag().items()}
    healthy = status.error is None and not status.waiting_for
    body: dict[str, object] = {"phase": status.phase, "lag": lag, "waiting for": status.waiting_for}
    return 200 if healthy else 503, body


async def main(zookeeper: str, group: str, topic: str, port: str) -> None:
    config = ConsumerConfig(
        zookeeper_connect=zookeeper, group_id=group, auto_offset_reset="smallest"
    )

    async def revoked(partitions: list[TopicPartition]) -> None:
        await connector.commit(timeout_s=5.0)  # so the next owner continues after these messages

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        code, body = health(connector)
        text = json.dumps(body)
        head = f"HTTP/1.0 {code} health\r\nContent-Type: application/json\r\n\r\n"
        writer.write((head + text).encode())
        await writer.drain()
        writer.close()

    async with ConsumerConnector(config, on_revoked=revoked) as connector:
        (stream,) = (await connector.create_message_streams({topic: 1}))[topic]
        consuming = asyncio.create_task(consume(stream))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consuming.cancel)
        async with await asyncio.start_server(answer, "127.0.0.1", int(port)):
            await consuming


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:]))
    except asyncio.CancelledError:
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(130)
