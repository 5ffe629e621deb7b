"""Lossless coders of numbers, and what a tensor offers them.

Numbers are given as words of their bits. No coder is a part of the package, or
of what it needs: `zlib` is Python's, lz4 and zstd are the system's libraries,
where it has them.
"""

import ctypes
import ctypes.util
import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

_WORDS = {2: np.uint16, 4: np.uint32}


@dataclasses.dataclass(frozen=True)
class Coder:
    """A way to code words.

    Attributes:
        name: For tables.
        encode: Function of words `(n,)`, to what is sent.
        decode: The way back.
        nbytes: Function of what is sent, to its bytes.
    """

    name: str
    encode: Callable[[np.ndarray], Any]
    decode: Callable[[Any], np.ndarray]
    nbytes: Callable[[Any], int]


def words(x):
    """Numbers of float32 or bfloat16 as whole ones of their bits."""
    return np.ascontiguousarray(x).view(_WORDS[x.dtype.itemsize]).ravel()


def planes(x):
    """Bytes of words, `(2 or 4, n)`: exponents, then fractions.

    The sign goes to the end, so that an exponent is a byte.
    """
    bits = 8 * x.itemsize
    turned = (x << 1) | (x >> (bits - 1))
    by_word = turned.view(np.uint8).reshape(-1, x.itemsize)
    return np.ascontiguousarray(by_word.T[::-1])


def numbers(of):
    """Reverses `planes`."""
    dtype = _WORDS[len(of)]
    turned = np.ascontiguousarray(of[::-1].T).view(dtype).ravel()
    return (turned >> 1) | (turned << (8 * len(of) - 1))


def entropy(plane):
    """Bits of a byte, if each is coded by itself."""
    part = np.bincount(plane, minlength=256) / max(len(plane), 1)
    part = part[part > 0]
    return float(-(part * np.log2(part)).sum())


def all_coders():
    """Those that this machine has."""
    own = [ZEROS, EXPONENTS, ZEROS_AND_EXPONENTS, ZLIB]
    return [*own, *_lz4(), *_zstd()]


def _without_zeros(x):
    there = x != 0
    return len(x), np.packbits(there), x[there]


def _with_zeros(coded):
    n, bits, values = coded
    x = np.zeros(n, values.dtype)
    x[np.unpackbits(bits, count=n).view(bool)] = values
    return x


# A bit for each number, whether it is 0, and those that are not.
ZEROS = Coder(
    "zeros",
    _without_zeros,
    _with_zeros,
    lambda coded: coded[1].nbytes + coded[2].nbytes,
)


def _short_exponents(x):
    found = planes(x)
    coder = zlib.compressobj(1, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    return coder.compress(found[0]) + coder.flush(), found[1:]


def _long_exponents(coded):
    exponents = np.frombuffer(zlib.decompress(coded[0], -15), np.uint8)
    return numbers(np.concatenate([exponents[None], coded[1]]))


# Exponents by Huffman's code, all else as it is.
EXPONENTS = Coder(
    "exponents",
    _short_exponents,
    _long_exponents,
    lambda coded: len(coded[0]) + coded[1].nbytes,
)


def _zeros_then_exponents(x):
    n, bits, values = ZEROS.encode(x)
    return n, bits, EXPONENTS.encode(values)


def _exponents_then_zeros(coded):
    n, bits, values = coded
    return ZEROS.decode((n, bits, EXPONENTS.decode(values)))


ZEROS_AND_EXPONENTS = Coder(
    "zeros, exponents",
    _zeros_then_exponents,
    _exponents_then_zeros,
    lambda coded: coded[1].nbytes + EXPONENTS.nbytes(coded[2]),
)


def _from_zlib(coded):
    width, data = coded
    found = np.frombuffer(zlib.decompress(data), np.uint8)
    return numbers(found.reshape(width, -1))


ZLIB = Coder(
    "zlib 1",
    lambda x: (x.itemsize, zlib.compress(planes(x), 1)),
    _from_zlib,
    lambda coded: len(coded[1]),
)


def _of_library(name, bound, compress, decompress):
    """A coder of a C library, on the planes."""

    def encode(x):
        found = planes(x)
        coded = np.empty(bound(found.nbytes), np.uint8)
        n = compress(found.ctypes, found.nbytes, coded.ctypes, len(coded))
        return found.shape, coded[:n]

    def decode(coded):
        shape, data = coded
        found = np.empty(shape, np.uint8)
        decompress(data.ctypes, len(data), found.ctypes, found.nbytes)
        return numbers(found)

    return Coder(name, encode, decode, lambda coded: len(coded[1]))


def _lz4():
    name = ctypes.util.find_library("lz4")
    if name is None:
        return
    library, pointer = ctypes.CDLL(name), ctypes.c_void_p

    def compress(x, n, y, m):
        return library.LZ4_compress_default(
            x.data_as(pointer), y.data_as(pointer), n, m
        )

    def decompress(x, n, y, m):
        return library.LZ4_decompress_safe(
            x.data_as(pointer), y.data_as(pointer), n, m
        )

    yield _of_library("lz4", library.LZ4_compressBound, compress, decompress)


def _zstd():
    name = ctypes.util.find_library("zstd")
    if name is None:
        return
    library, pointer = ctypes.CDLL(name), ctypes.c_void_p
    size = ctypes.c_size_t
    for function in (
        library.ZSTD_compressBound,
        library.ZSTD_compress,
        library.ZSTD_decompress,
    ):
        function.restype = size

    def bound(n):
        return library.ZSTD_compressBound(size(n))

    def compress(x, n, y, m):
        return library.ZSTD_compress(
            *(y.data_as(pointer), size(m), x.data_as(pointer), size(n), 1)
        )

    def decompress(x, n, y, m):
        return library.ZSTD_decompress(
            *(y.data_as(pointer), size(m), x.data_as(pointer), size(n))
        )

    yield _of_library("zstd 1", bound, compress, decompress)
