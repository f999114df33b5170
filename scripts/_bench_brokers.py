"""A broker with a topic of many partitions for `bench_spark`: librdkafka's mock cluster.

    python _bench_brokers.py TOPIC PARTITIONS

The program prints the cluster's address, and ends when its standard input is closed. A real broker
opens files for each partition and needs minutes to create 10,000 of them.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import confluent_kafka


def main() -> None:
    topic, partitions = sys.argv[1], int(sys.argv[2])
    package = Path(confluent_kafka.__file__).parent
    (library,) = package.with_name("confluent_kafka.libs").glob("librdkafka*.so*")
    rd = ctypes.CDLL(str(library))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
        getattr(rd, name).restype = ctypes.c_void_p
    rd.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    reason = ctypes.create_string_buffer(512)
    conf = ctypes.c_void_p(rd.rd_kafka_conf_new())
    client = ctypes.c_void_p(rd.rd_kafka_new(0, conf, reason, ctypes.c_size_t(512)))
    assert client, reason.value
    cluster = ctypes.c_void_p(rd.rd_kafka_mock_cluster_new(client, 1))
    assert not rd.rd_kafka_mock_topic_create(cluster, topic.encode(), partitions, 1)
    print(rd.rd_kafka_mock_cluster_bootstraps(cluster).decode(), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
