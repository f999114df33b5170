"""What numba writes into compiled loops in place of the functions of `primitives`.

The import of this module needs numba. It makes the functions usable in all loops that are compiled
afterwards.

Each message of the formats v0 and v1 has a checksum. Calling zlib for each message would cost more
than all other work of the parser. x86 processors have an instruction that multiplies polynomials
(PCLMULQDQ). A checksum with this instruction takes a fraction of the time of table look-ups.
Source: V. Gopal and others, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
Instruction", Intel 2009.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic, overload, register_jitable

from zkconsumer.kafka.columns.primitives import Array, copy, crc32, int32, int64

Part: TypeAlias = Any  # Any: numba and llvmlite have no types

# Size, in bytes, of the blocks that `_multiplied` processes. `_looked_up` processes shorter
# messages, with tables.
_BLOCK: Final = 16

# The first three are x^(128+32), x^(128-32) and x^64 modulo the polynomial. The reduction also
# needs the quotient of x^64 and the polynomial, and the polynomial itself. All are bit-reflected.
_FOLD_LOW: Final = 0x01751997D0
_FOLD_HIGH: Final = 0x00CCAA009E
_FOLD_LAST: Final = 0x0163CD6124
_QUOTIENT: Final = 0x01F7011641
_POLYNOMIAL: Final = 0x01DB710641

_LONG: Final = ir.IntType(64)
_WIDE: Final = ir.IntType(128)
_PAIR: Final = ir.VectorType(_LONG, 2)

# ---- numbers and copies --------------------------------------------------------------------------


def _start_of(context: Part, builder: Part, kind: Part, array: Part) -> Part:
    return cgutils.create_struct_proxy(kind)(context, builder, array).data


def _loader(bits: int) -> Part:
    """Return the function that loads a big-endian number of 32 or 64 bits."""

    @intrinsic  # type: ignore[untyped-decorator]  # numba has no types
    def loaded(context: Part, data: Part, at: Part) -> Part:
        def write(context: Part, builder: Part, signature: Part, arguments: Part) -> Part:
            array, at = arguments
            place = builder.gep(_start_of(context, builder, signature.args[0], array), [at])
            kind = ir.IntType(bits)
            raw = builder.load(builder.bitcast(place, kind.as_pointer()), align=1)
            value = builder.bswap(raw) if sys.byteorder == "little" else raw
            return builder.sext(value, _LONG) if bits < 64 else value

        return types.int64(data, types.int64), write

    return loaded


_load32, _load64 = _loader(32), _loader(64)


def _int32(data: Array, at: int) -> Callable[[Array, int], int]:
    def compiled(data: Array, at: int) -> int:
        return _load32(data, at)  # type: ignore[no-any-return]  # numba has no types

    return compiled


def _int64(data: Array, at: int) -> Callable[[Array, int], int]:
    def compiled(data: Array, at: int) -> int:
        return _load64(data, at)  # type: ignore[no-any-return]  # numba has no types

    return compiled


# LLVM turns this loop into vector instructions; a slice would cost several times as much.
def _copy(
    source: Array, at: int, size: int, target: Array, to: int
) -> Callable[[Array, int, int, Array, int], None]:
    def compiled(source: Array, at: int, size: int, target: Array, to: int) -> None:
        # A negative index counts from the end, so with signed indexes each step would have to
        # check the sign.
        source_at, target_at = np.uint64(at), np.uint64(to)
        for number in range(np.uint64(size)):
            target[target_at + number] = source[source_at + number]

    return compiled


overload(int32)(_int32)
overload(int64)(_int64)
overload(copy)(_copy)

# ---- checksums -----------------------------------------------------------------------------------


def can_multiply() -> bool:
    """Return whether the processor for which numba compiles has the instruction PCLMULQDQ."""
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    return "+pclmul" in features.split(",")


class _Writer:
    """Writes the LLVM instructions that compute a checksum."""

    def __init__(self, builder: ir.IRBuilder, start: ir.Value) -> None:
        self.builder, self._start = builder, start
        kind = ir.FunctionType(_PAIR, [_PAIR, _PAIR, ir.IntType(8)])
        name = "llvm.x86.pclmulqdq"
        self._multiply = cgutils.get_or_insert_function(builder.module, kind, name)

    def block(self, at: ir.Value) -> ir.Value:
        """Return the 16 bytes at a position as a number."""
        place = self.builder.gep(self._start, [at])
        return self.builder.load(self.builder.bitcast(place, _WIDE.as_pointer()), align=1)

    def times(self, value: ir.Value, factors: tuple[int, int], halves: int) -> ir.Value:
        """Multiply one half of a number by one of two factors, as polynomials.

        The bits of `halves` choose both. Bit 0x01 selects the number's upper half instead of
        its lower half. Bit 0x10 selects the second factor instead of the first.
        """
        pair = self.builder.bitcast(value, _PAIR)
        made = self.builder.call(
            self._multiply,
            [pair, ir.Constant(_PAIR, list(factors)), ir.Constant(ir.IntType(8), halves)],
        )
        return self.builder.bitcast(made, _WIDE)

    def xor(self, first: ir.Value, *others: ir.Value) -> ir.Value:
        for one in others:
            first = self.builder.xor(first, one)
        return first

    def fold(self, value: ir.Value) -> ir.Value:
        """Return a number that, if XORed with the next block, replaces this block."""
        factors = (_FOLD_LOW, _FOLD_HIGH)
        return self.xor(self.times(value, factors, 0), self.times(value, factors, 0x11))

    def reduced(self, value: ir.Value) -> ir.Value:
        """Return the remainder of a block's division by the polynomial, in 32 bits."""
        b = self.builder

        def down(one: ir.Value, bits: int) -> ir.Value:
            return b.lshr(one, ir.Constant(_WIDE, bits))

        def low(one: ir.Value) -> ir.Value:
            return b.and_(one, ir.Constant(_WIDE, 0xFFFFFFFF))

        value = self.xor(down(value, 64), self.times(value, (0, _FOLD_HIGH), 0x10))
        value = self.xor(down(value, 32), self.times(low(value), (_FOLD_LAST, 0), 0))
        part = self.times(low(value), (0, _QUOTIENT), 0x10)
        value = self.xor(value, self.times(low(part), (_POLYNOMIAL, 0), 0))
        return b.trunc(down(value, 32), ir.IntType(32))


@intrinsic  # type: ignore[untyped-decorator]  # numba has no types
def _multiplied(context: Part, data: Part, at: Part, end: Part) -> Part:
    """Return the CRC-32 of the bytes from `at` to `end`, at least `_BLOCK` bytes.

    Zeros before the bytes do not change a checksum whose start value is 0. So the function puts
    zeros before the bytes until the number of bytes is a multiple of the block size. The start
    value of CRC-32 is combined with the first four bytes by XOR.
    """

    def write(context: Part, builder: Part, signature: Part, arguments: Part) -> Part:
        array, at, end = arguments
        start = _start_of(context, builder, signature.args[0], array)
        writer = _Writer(builder, start)
        size = builder.sub(end, at)
        missing = builder.and_(builder.neg(size), ir.Constant(_LONG, _BLOCK - 1))
        bits = builder.zext(builder.shl(missing, ir.Constant(_LONG, 3)), _WIDE)
        inverted = ir.Constant(_WIDE, 0xFFFFFFFF)
        first = builder.shl(writer.xor(writer.block(at), inverted), bits)
        # `over` is the part of the start value that the shift moves out of the first block. It
        # belongs to the second block.
        rest = builder.sub(ir.Constant(_WIDE, 120), bits)
        over = builder.lshr(builder.lshr(inverted, ir.Constant(_WIDE, 8)), rest)
        value = cgutils.alloca_once_value(builder, first)
        carry = cgutils.alloca_once_value(builder, over)
        step = ir.Constant(_LONG, _BLOCK)
        second = builder.add(builder.sub(at, missing), step)
        with cgutils.for_range_slice(builder, second, end, step) as (here, _):
            folded = writer.fold(builder.load(value))
            builder.store(writer.xor(folded, writer.block(here), builder.load(carry)), value)
            builder.store(ir.Constant(_WIDE, 0), carry)
        return builder.not_(writer.reduced(builder.load(value)))

    return types.uint32(data, types.int64, types.int64), write


def _crc_tables() -> Array:
    """Return eight tables, with which one step computes CRC-32 for eight bytes."""
    tables = np.zeros((8, 256), np.uint32)
    for number in range(256):
        value = number
        for _ in range(8):
            value = (value >> 1) ^ (0xEDB88320 if value & 1 else 0)
        tables[0, number] = value
    for step in range(1, 8):
        before = tables[step - 1]
        tables[step] = (before >> 8) ^ tables[0][before & 255]
    return tables


_TABLES: Final = _crc_tables()


@register_jitable  # type: ignore[untyped-decorator]  # numba has no types
def _looked_up(data: Array, at: int, end: int) -> Array:
    t = _TABLES
    crc = np.uint32(0xFFFFFFFF)
    while at + 8 <= end:
        crc = (
            t[7, data[at] ^ (crc & 255)]
            ^ t[6, data[at + 1] ^ ((crc >> 8) & 255)]
            ^ t[5, data[at + 2] ^ ((crc >> 16) & 255)]
            ^ t[4, data[at + 3] ^ (crc >> 24)]
            ^ t[3, data[at + 4]]
            ^ t[2, data[at + 5]]
            ^ t[1, data[at + 6]]
            ^ t[0, data[at + 7]]
        )
        at += 8
    while at < end:
        crc = np.uint32(crc >> 8) ^ t[0, data[at] ^ (crc & 255)]
        at += 1
    return np.int64(np.uint32(crc ^ np.uint32(0xFFFFFFFF)))


def by_tables(data: Array, at: int, end: int) -> Array:
    return _looked_up(data, at, end)


def by_products(data: Array, at: int, end: int) -> Array:
    if end - at < _BLOCK:
        return _looked_up(data, at, end)
    return np.int64(_multiplied(data, at, end))


def _crc32(data: Array, at: int, end: int) -> Callable[[Array, int, int], Array]:
    return by_products if can_multiply() else by_tables


overload(crc32)(_crc32)
