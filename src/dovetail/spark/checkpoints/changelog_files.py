"""The blobs that a micro-batch has written to a partition of Spark's state store.

They are read from the file in which Spark keeps them until the next snapshot
(``state/<operator>/<partition>/<version>.changelog``). This is a shortcut: a file that is not
exactly as known raises ``UnreadableFile``, and the caller asks Spark instead.

The file is a stream of LZ4 blocks (lz4-java's frames): a version, then records of a kind, a key and
a value. Key and value have their lengths in front, big-endian. Both are Spark's unsafe rows,
little-endian, each behind a version byte. In the state variable with the buckets' blobs, the key is
the bucket's label, then the blob's name. If several stages share an operator, the name begins with
the stage's fingerprint and a slash.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

import pyarrow as pa
import xxhash

from dovetail.state import manifest as manifests

_HEAD = struct.Struct("<8sBiiI")
_MAGIC, _RAW, _LZ4 = b"LZ4Block", 0x10, 0x20
_SEED, _CHECKSUM_BITS = 0x9747B28C, 0x0FFFFFFF
"""The seed of a block's xxHash32, and the bits of it that the block's header has."""
_BLOCK_BITS = 10
"""A block has at most two to the power of this and its header's level."""
_VERSION = b"\x00\x02v2"
_END, _PUT, _DELETE = 0x00, 0x01, 0x10
_BLOB_NAME = re.compile(
    rf"([^/]+/)?({manifests.NAME}|{manifests.PAGE}[0-9a-f]{{32}}|[0-9a-f]{{32}})".encode()
)
# Offsets in a key: the state variable's number, the label's row with its length, the name's row.
_LABEL_LENGTH, _LABEL, _NAME_LENGTH, _NAME_AT = 2, 31, 64, 72
_LABEL_ROW_BYTES = 33
_VALUE_LENGTH, _VALUE_AT = 9, 17


class UnreadableFile(Exception):  # noqa: N818 -- no error: the reader has another way
    """Raised for a file that is not as this module knows it."""


def blob_changes(file: bytes) -> Iterator[tuple[int, str, bytes | None]]:
    """Yield (label, name, bytes) of the blobs that a changelog file of Spark's state store has
    written or deleted, in the file's order. The label is the int under which Spark shuffles and
    stores the blob's bucket, not the bucket's index. The bytes are None for a deleted blob.

    ``file``: the file's content. Records of other state variables are skipped. A blob that was
    changed twice comes twice. Raises ``UnreadableFile`` for another format, an empty file, and one
    that is cut off; blobs may have been yielded before.
    """
    data = _decompress_file(file)
    if data[: len(_VERSION)] != _VERSION:
        raise UnreadableFile("another version")
    at = len(_VERSION)
    try:
        while at < len(data):
            kind = struct.unpack_from(">b", data, at)[0]
            if kind == _END:
                return
            if kind not in (_PUT, _DELETE):
                raise UnreadableFile(f"a record of kind {kind}")
            key, at = _read_field(data, at + 1)
            value, at = _read_field(data, at)
            label, name = _label_and_name(key)
            if name is not None:
                yield label, name, blob_of(value) if kind == _PUT else None
    except struct.error as error:
        raise UnreadableFile("a file that is cut off") from error
    raise UnreadableFile("a file without its end")


def _read_field(data: memoryview, at: int) -> tuple[memoryview, int]:
    """Return the bytes of a field, and the index behind them. ``at``: the index in ``data`` of the
    field's length, a big-endian int32. A negative length, as of a deleted value, gives no bytes and
    the index ``at + 4``.

    Raises ``UnreadableFile`` if the bytes reach beyond the data, ``struct.error`` if the length
    does.
    """
    (size,) = struct.unpack_from(">i", data, at)
    end = at + 4 + max(size, 0)  # a deleted key has the value length -1
    if end > len(data):
        raise UnreadableFile("a length that cannot be")
    return data[at + 4 : end], end


def _label_and_name(key: memoryview) -> tuple[int, str | None]:
    """Return a blob's bucket label and name. ``key``: the bytes of a record's key. If the key is
    another state variable's, or too short, the name is None, and the label means nothing.

    The key has the state variable's id (2 bytes), then two rows of Spark's: one with the label, one
    with the name. Before the first is its length, before each a version byte.
    """
    if len(key) < _NAME_AT or struct.unpack_from("<i", key, _LABEL_LENGTH)[0] != _LABEL_ROW_BYTES:
        return 0, None
    (label,) = struct.unpack_from("<i", key, _LABEL)
    (size,) = struct.unpack_from("<i", key, _NAME_LENGTH)
    name = bytes(key[_NAME_AT : _NAME_AT + max(size, 0)])
    return label, name.decode() if _BLOB_NAME.fullmatch(name) else None


def blob_of(value: memoryview) -> bytes:
    """Return the bytes of a blob from ``value``, a version byte and an unsafe row of Spark's with
    the blob alone. Raises ``UnreadableFile`` for a row of another shape.
    """
    if len(value) < _VALUE_AT:
        raise UnreadableFile("a value that is cut off")
    size, at = struct.unpack_from("<ii", value, _VALUE_LENGTH)
    blob = bytes(value[1 + at : 1 + at + size])
    if at != _VALUE_AT - 1 or len(blob) != size:
        raise UnreadableFile("a value of another shape")
    return blob


def _decompress_file(file: bytes) -> memoryview:
    """Return the content of a file of LZ4 blocks, empty for an empty file. Raises
    ``UnreadableFile`` for another compression, for a file that is cut off, and for a block that is
    corrupt.
    """
    parts, at = [], 0
    while at < len(file):
        try:
            magic, token, packed, size, checksum = _HEAD.unpack_from(file, at)
        except struct.error as error:
            raise UnreadableFile("a file that is cut off") from error
        start, at = at + _HEAD.size, at + _HEAD.size + packed
        method = token & 0xF0
        if magic != _MAGIC or method not in (_RAW, _LZ4) or packed < 0 or at > len(file):
            raise UnreadableFile("another compression")
        if size:
            most = 1 << (_BLOCK_BITS + (token & 0x0F))
            parts.append(_decompress_block(file[start:at], method, size, most, checksum))
    return memoryview(b"".join(parts))


def _decompress_block(packed: bytes, method: int, size: int, most: int, checksum: int) -> bytes:
    """Return the content of the block ``packed``: ``size`` bytes, whose xxHash32 must be
    ``checksum`` in its lower 28 bits. ``method``: ``_RAW`` or ``_LZ4``. ``most``: the largest size
    that the block's header allows.

    Raises ``UnreadableFile`` if ``size`` is not from 1 to ``most``, or if the content has another
    size or checksum. Also for a block that cannot be decompressed.
    """
    if not 0 < size <= most:
        raise UnreadableFile("a size that cannot be")
    block = packed
    if method == _LZ4:
        try:
            block = pa.Codec("lz4_raw").decompress(packed, size, asbytes=True)
        except OSError as error:
            raise UnreadableFile("a block that cannot be unpacked") from error
    if len(block) != size or xxhash.xxh32_intdigest(block, _SEED) & _CHECKSUM_BITS != checksum:
        raise UnreadableFile("a block with another checksum")
    return block
