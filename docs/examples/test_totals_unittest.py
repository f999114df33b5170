"""Tests of totals.py with unittest, on fake servers.

python -m unittest test_totals_unittest.py
"""

from __future__ import annotations

import time
import unittest
from threading import Thread

from totals import Totals

from zkconsumer import TopicPartition
from zkconsumer.testing import LegacyKafka, open_legacy_kafka


class TotalsTest(unittest.TestCase):
    """The consumer on a fake ZooKeeper and a fake broker, which are new for each test."""

    kafka: LegacyKafka

    def setUp(self) -> None:
        self.kafka = self.enterContext(open_legacy_kafka("fake", release="1.1.1"))
        self.kafka.create_topic("amounts", partitions=2)

    def test_amounts_are_added_up(self) -> None:
        """The amounts of a customer are added up, and their offsets are committed."""
        self.kafka.produce("amounts", ["3", "4"], key="ann", partition=1)
        totals = Totals()
        arguments = (self.kafka.zookeeper_connect, "billing", "amounts")
        thread = Thread(target=totals.run, args=arguments)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(totals.stop)
        expected = TopicPartition("amounts", 1)
        deadline = time.monotonic() + 60
        while self.kafka.committed("billing").get(expected) != 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual(totals.by_customer, {"ann": 7})


if __name__ == "__main__":
    unittest.main()
