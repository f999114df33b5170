"""An assignor that gives each topic's partitions in turn to its members, and forgets who had them.

zkconsumer judge --assignor docs/examples/judge/assignor.py
"""

import json
import sys
from typing import Any


def assignment(topics: dict[str, int], members: dict[str, Any]) -> dict[str, dict[str, list[int]]]:
    found: dict[str, dict[str, list[int]]] = {name: {} for name in members}
    for topic, partitions in topics.items():
        mine = sorted(name for name, one in members.items() if topic in one["topics"])
        for partition in range(partitions if mine else 0):
            found[mine[partition % len(mine)]].setdefault(topic, []).append(partition)
    return found


if __name__ == "__main__":
    for line in sys.stdin:
        message = json.loads(line)
        answer = {"members": assignment(message["topics"], message["members"])}
        print(json.dumps({"type": "assignment", **answer}))
        print(json.dumps({"type": "done"}), flush=True)
