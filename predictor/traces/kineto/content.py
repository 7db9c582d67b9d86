"""Content of a trace file as text, piece by piece: plain, gzipped or in an archive, by content.

What a name ends in does not matter: gzip data starts with `1f8b`, an archive of one file has the
mark of tar, anything else is taken as text. Nothing but the piece at hand is held.
"""

from __future__ import annotations

import codecs
import hashlib
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from predictor.errors import DataError
from predictor.traces.files import GZIP_MAGIC

CHUNK_BYTES = 1 << 20
"""Bytes of a file that are read at a time."""
_TAR_MARK, _TAR_MARK_AT, _TAR_BLOCK = b"ustar", 257, 512
_REMEDY = "record or fetch it again"


@dataclass(slots=True, kw_only=True)
class TraceContent:
    """One file; `pieces` reads it once, then `sha256` is known."""

    path: Path
    name: str
    """How messages and rows call it."""
    size_bytes: int = 0
    """Uncompressed bytes read so far."""
    _digest: Any = field(default_factory=hashlib.sha256)

    @property
    def sha256(self) -> str:
        """Hash of the uncompressed content read so far."""
        return str(self._digest.hexdigest())

    def pieces(self) -> Iterator[str]:
        """The text, in order; bytes that are no UTF-8 become replacement characters.

        Raises:
            DataError: the file cannot be read, its compressed stream is cut off or damaged, or an
                archive holds not exactly one file.
        """
        decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        try:
            for block in self._unpacked():
                yield decoder.decode(block)
            yield decoder.decode(b"", final=True)
        except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
            reason = " ".join(str(error).split())
            raise DataError(f"{self.name}: cannot be read ({reason}); {_REMEDY}") from error

    def _unpacked(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            blocks = self._hashed(_plain_blocks(file, self.name))
            first = next(blocks, b"")
            while len(first) < _TAR_BLOCK and (more := next(blocks, b"")):
                first += more
            if not first.startswith(b"{") and first[_TAR_MARK_AT:].startswith(_TAR_MARK):
                for _ in blocks:  # the hash is of the whole content
                    pass
                yield from self._member()
                return
            yield first
            yield from blocks

    def _hashed(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        for block in blocks:
            self._digest.update(block)
            self.size_bytes += len(block)
            yield block

    def _member(self) -> Iterator[bytes]:
        with tarfile.open(self.path, "r:*") as archive:
            members = [m for m in archive.getmembers() if m.isfile()]
            if len(members) != 1:
                names = ", ".join(m.name for m in members[:5]) or "none"
                raise DataError(
                    f"{self.name}: an archive of {len(members)} files ({names}); unpack it and "
                    "give the folder"
                )
            stream = archive.extractfile(members[0])
            assert stream is not None  # it is a file
            yield from _plain_blocks(stream, self.name)


def head_of(path: Path, size: int = 4096) -> str:
    """The first characters of a file's content.

    Raises:
        DataError: it cannot be read.
    """
    content = TraceContent(path=path, name=str(path))
    head = ""
    for piece in content.pieces():
        head += piece
        if len(head) >= size:
            break
    return head[:size]


def _plain_blocks(stream: Any, name: str) -> Iterator[bytes]:
    """Uncompressed blocks of a stream, gzipped (one member or several) or not."""
    block = stream.read(CHUNK_BYTES)
    if not block.startswith(GZIP_MAGIC):
        while block:
            yield block
            block = stream.read(CHUNK_BYTES)
        return
    yield from _gunzipped(block, stream, name)


def _gunzipped(block: bytes, stream: BinaryIO, name: str) -> Iterator[bytes]:
    inflater = zlib.decompressobj(wbits=31)
    while block:
        out = inflater.decompress(block, CHUNK_BYTES)
        if out:
            yield out
        block = inflater.unconsumed_tail
        while not block and not inflater.eof:
            pending = inflater.decompress(b"", CHUNK_BYTES)
            if not pending:
                break
            yield pending
        if inflater.eof:
            block = inflater.unused_data.lstrip(b"\0") or stream.read(CHUNK_BYTES).lstrip(b"\0")
            if block:
                if not block.startswith(GZIP_MAGIC):
                    raise DataError(f"{name}: other data follows the gzip stream; {_REMEDY}")
                inflater = zlib.decompressobj(wbits=31)
        elif not block:
            block = stream.read(CHUNK_BYTES)
    if not inflater.eof:
        raise EOFError("the compressed stream is cut off")
