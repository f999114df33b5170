"""Maps and sets that iterate in the order of `java.util.HashMap` and `java.util.HashSet`.

Some of Kafka's assignors iterate over hash maps, so the order of a hash map decides which member
gets a partition. The order depends on the hash codes, on the order of the insertions, on the size
that the table has reached, and on the form of the bins. When a bin gets its ninth key, Java doubles
a table of fewer than 64 bins. In a larger table it turns the bin into a red-black tree, which
changes the order of the keys in the bin (OpenJDK 8-21, `HashMap.treeifyBin`).

Keys of a tree that have equal hash codes are ordered by `compareTo`. Java orders keys without
`compareTo` by their address in memory, which no other program can reproduce. In this module, such
keys keep their insertion order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Generic, TypeVar

from zkconsumer.protocol.java.text import java_hash, utf16_key

K = TypeVar("K")
V = TypeVar("V")

# Number of bins of a new table (`DEFAULT_INITIAL_CAPACITY`).
_FIRST_CAPACITY = 16

# If a bin already has this number of keys, a new key turns it into a tree (`TREEIFY_THRESHOLD`).
_TREE_KEYS = 8

# If a split leaves at most this number of keys, the tree becomes a list (`UNTREEIFY_THRESHOLD`).
_LIST_KEYS = 6

# Number of bins of the smallest table that may contain trees (`MIN_TREEIFY_CAPACITY`).
_TREE_CAPACITY = 64

Compare = Callable[[K, K], int]


def compare_strings(left: str, right: str) -> int:
    """Return a negative number, 0 or a positive number, as `String.compareTo` does."""
    one, other = utf16_key(left), utf16_key(right)
    return (one > other) - (one < other)


# ---- tree bins -----------------------------------------------------------------------------------


class _Node(Generic[K]):
    """A key in a tree bin; the links are those of a red-black tree."""

    __slots__ = ("hash", "key", "left", "parent", "red", "right")

    def __init__(self, key: K, code: int) -> None:
        self.key, self.hash, self.red = key, code, False
        self.left: _Node[K] | None = None
        self.right: _Node[K] | None = None
        self.parent: _Node[K] | None = None


class _Tree(Generic[K]):
    """A tree bin. `order` is the order in which Java iterates over the keys (`TreeNode.next`)."""

    def __init__(self, nodes: list[_Node[K]], compare: Compare[K] | None) -> None:
        self._compare, self._root = compare, nodes[0]
        self.order = nodes
        for node in nodes:
            node.left = node.right = node.parent = None
            node.red = False
            if node is not nodes[0]:
                self._attach(node)
        self._root_to_front()

    def add(self, key: K, code: int) -> None:
        """Insert a key after its parent in the order of the list (`putTreeVal`)."""
        node = _Node(key, code)
        parent = self._attach(node)
        self.order.insert(self.order.index(parent) + 1, node)
        self._root_to_front()

    def remove(self, key: K) -> list[_Node[K]] | None:
        """Remove a key; return the nodes of the list that replaces a small tree, else None."""
        gone = next(node for node in self.order if node.key == key)
        self.order.remove(gone)
        root = self._root
        if root.right is None or root.left is None or root.left.left is None:
            return self.order
        self._detach(gone)
        self._root_to_front()
        return None

    def _attach(self, node: _Node[K]) -> _Node[K]:
        """Insert the node as a leaf, balance the tree, and return the parent of the leaf."""
        at: _Node[K] | None = self._root
        parent, left = self._root, True
        while at is not None:
            parent, left = at, self._direction(node, at) <= 0
            at = at.left if left else at.right
        node.parent = parent
        if left:
            parent.left = node
        else:
            parent.right = node
        self._balance_after_insertion(node)
        return parent

    def _direction(self, node: _Node[K], at: _Node[K]) -> int:
        if node.hash != at.hash:
            return -1 if node.hash < at.hash else 1
        return self._compare(node.key, at.key) if self._compare else -1

    def _root_to_front(self) -> None:
        if self.order[0] is not self._root:
            self.order.remove(self._root)
            self.order.insert(0, self._root)

    def _rotate(self, node: _Node[K], *, left: bool) -> None:
        child = node.right if left else node.left
        if child is None:
            return
        inner = child.left if left else child.right
        if left:
            node.right, child.left = inner, node
        else:
            node.left, child.right = inner, node
        if inner is not None:
            inner.parent = node
        self._replace(node, child)
        node.parent = child

    def _replace(self, node: _Node[K], by: _Node[K] | None) -> None:
        """Make `by` the child of `node`'s parent, in place of `node`."""
        parent = node.parent
        if by is not None:
            by.parent = parent
        if parent is None:
            if by is not None:
                self._root = by
        elif parent.left is node:
            parent.left = by
        else:
            parent.right = by

    def _balance_after_insertion(self, node: _Node[K]) -> None:
        node.red = True
        while True:
            parent = node.parent
            if parent is None:
                node.red = False
                return
            above = parent.parent
            if not parent.red or above is None:
                return
            left = parent is above.left
            uncle = above.right if left else above.left
            if uncle is not None and uncle.red:
                uncle.red = parent.red = False
                above.red = True
                node = above
                continue
            if node is (parent.right if left else parent.left):
                node = parent
                self._rotate(node, left=left)
                parent = node.parent
            if parent is not None:
                parent.red = False
                if parent.parent is not None:
                    parent.parent.red = True
                    self._rotate(parent.parent, left=not left)

    def _detach(self, node: _Node[K]) -> None:
        if node.left is not None and node.right is not None:
            self._swap_with_successor(node)
        replacement = node.left if node.left is not None else node.right
        if replacement is not None:
            self._replace(node, replacement)
            if node is self._root or replacement.parent is None:
                self._root = replacement
                replacement.red = False
            node.left = node.right = node.parent = None
            if not node.red:
                self._balance_after_removal(replacement)
            return
        if not node.red:
            self._balance_after_removal(node)
        self._replace(node, None)
        node.parent = None

    def _swap_with_successor(self, node: _Node[K]) -> None:
        """Swap the node with its in-order successor, including their colours."""
        after = node.right
        assert after is not None
        while after.left is not None:
            after = after.left
        node.red, after.red = after.red, node.red
        left, right, below, parent = node.left, node.right, after.right, after.parent
        self._replace(node, after)
        node.left, node.right = None, below
        if below is not None:
            below.parent = node
        if after is right:
            node.parent, after.right = after, node
        else:
            assert parent is not None and right is not None
            node.parent, parent.left = parent, node
            after.right, right.parent = right, after
        after.left = left
        if left is not None:
            left.parent = after

    def _balance_after_removal(self, node: _Node[K]) -> None:
        while node is not self._root:
            parent = node.parent
            if parent is None:
                node.red = False
                return
            if node.red:
                node.red = False
                return
            left = parent.left is node
            sibling = parent.right if left else parent.left
            if sibling is not None and sibling.red:
                sibling.red, parent.red = False, True
                self._rotate(parent, left=left)
                sibling = parent.right if left else parent.left
            if sibling is None:
                node = parent
                continue
            if self._recolour(sibling, parent, left=left):
                return
            node = parent

    def _recolour(self, sibling: _Node[K], parent: _Node[K], *, left: bool) -> bool:
        """Handle a black sibling; return whether the tree is balanced now."""
        near = sibling.left if left else sibling.right
        far = sibling.right if left else sibling.left
        if not (near is not None and near.red) and not (far is not None and far.red):
            sibling.red = True
            return False
        if far is None or not far.red:
            if near is not None:
                near.red = False
            sibling.red = True
            self._rotate(sibling, left=not left)
            again = parent.right if left else parent.left
            assert again is not None
            sibling = again
            far = sibling.right if left else sibling.left
        sibling.red = parent.red
        if far is not None:
            far.red = False
        parent.red = False
        self._rotate(parent, left=left)
        return True


# ---- maps and sets -------------------------------------------------------------------------------


class HashMap(Generic[K, V]):
    """A map that iterates over its keys in the order of `java.util.HashMap`.

    Args:
        hash_of: the keys' `hashCode`, a signed or unsigned number of 32 bits.
        compare: the keys' `compareTo`; None for a class that is not `Comparable`.
        capacity: the argument of Java's constructor; the table gets the next power of two.
    """

    def __init__(
        self,
        hash_of: Callable[[K], int],
        compare: Compare[K] | None = None,
        *,
        capacity: int = _FIRST_CAPACITY,
    ) -> None:
        self._hash_of, self._compare = hash_of, compare
        self._values: dict[K, V] = {}
        self._bins: dict[int, list[_Node[K]] | _Tree[K]] = {}
        self._capacity = 1 << max(0, capacity - 1).bit_length()
        self._ordered: list[K] | None = None

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __getitem__(self, key: K) -> V:
        return self._values[key]

    def __iter__(self) -> Iterator[K]:
        if self._ordered is None:
            nodes = chain.from_iterable(map(_in_order, map(self._bins.get, sorted(self._bins))))
            self._ordered = [node.key for node in nodes]
        return iter(self._ordered)

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None."""
        return self._values.get(key)

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterate over keys and values."""
        return ((key, self._values[key]) for key in self)

    def __setitem__(self, key: K, value: V) -> None:
        fresh = key not in self._values
        self._values[key] = value
        if fresh:
            self._insert(key)

    def __delitem__(self, key: K) -> None:
        del self._values[key]
        self._ordered = None
        index = self._spread(key) & (self._capacity - 1)
        found = self._bins[index]
        if isinstance(found, _Tree):
            rest = found.remove(key)
            if rest is None:
                return
        else:
            rest = [node for node in found if node.key != key]
        if rest:
            self._bins[index] = rest
        else:
            del self._bins[index]

    def clear(self) -> None:
        """Remove all keys; the table keeps its size, as in Java."""
        self._values.clear()
        self._bins.clear()
        self._ordered = None

    def _spread(self, key: K) -> int:
        code = self._hash_of(key) & 0xFFFFFFFF
        code ^= code >> 16
        return code - 2**32 if code >> 31 else code  # a tree compares signed numbers

    def _insert(self, key: K) -> None:
        self._ordered = None
        code = self._spread(key)
        index = code & (self._capacity - 1)
        found = self._bins.setdefault(index, [])
        if isinstance(found, _Tree):
            found.add(key, code)
        else:
            found.append(_Node(key, code))
            if len(found) > _TREE_KEYS:
                if self._capacity < _TREE_CAPACITY:
                    self._double()
                else:
                    self._bins[index] = _Tree(found, self._compare)
        if len(self._values) > self._capacity * 3 // 4:
            self._double()

    def _double(self) -> None:
        bit, old = self._capacity, self._bins
        self._capacity *= 2
        self._bins = {}
        for index, found in old.items():
            nodes = _in_order(found)
            low = [node for node in nodes if not node.hash & bit]
            high = [node for node in nodes if node.hash & bit]
            for at, half in ((index, low), (index + bit, high)):
                if half:
                    self._bins[at] = self._half_of(found, half)

    def _half_of(
        self, whole: list[_Node[K]] | _Tree[K], half: list[_Node[K]]
    ) -> list[_Node[K]] | _Tree[K]:
        if not isinstance(whole, _Tree) or len(half) <= _LIST_KEYS:
            return half
        return whole if len(half) == len(whole.order) else _Tree(half, self._compare)


def _in_order(found: list[_Node[K]] | _Tree[K] | None) -> list[_Node[K]]:
    if found is None:
        return []
    return found.order if isinstance(found, _Tree) else found


class HashSet(HashMap[K, None]):
    """A set that iterates over its elements in the order of `java.util.HashSet`."""

    def __init__(
        self,
        hash_of: Callable[[K], int],
        compare: Compare[K] | None = None,
        elements: Iterable[K] = (),
        *,
        capacity: int = _FIRST_CAPACITY,
    ) -> None:
        super().__init__(hash_of, compare, capacity=capacity)
        for element in elements:
            self.add(element)

    def add(self, element: K) -> None:
        """Add an element."""
        self[element] = None

    def discard(self, element: K) -> None:
        """Remove an element if the set contains it."""
        if element in self:
            del self[element]


class StringMap(HashMap[str, V]):
    """A `HashMap<String, V>`."""

    def __init__(self, *, capacity: int = _FIRST_CAPACITY) -> None:
        super().__init__(java_hash, compare_strings, capacity=capacity)
