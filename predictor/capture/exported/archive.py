"""The file of an exported program (`.pt2`): a zip archive, of which the descriptions are read.

Weights, example inputs and custom objects are members of the archive that nothing here reads:
they may be pickles, and unpickling runs code. `torch.export.load` unpickles them.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from predictor.capture.refusals import no_file
from predictor.errors import CaptureError
from predictor.json_object import json_object

LARGEST_DESCRIPTION = 128 << 20
"""Bytes of the largest description that is read (a call takes one to five thousand)."""
LARGEST_DIRECTORY = 32 << 20
"""Bytes of the largest list of members: some 300,000 of them."""

_MODELS, _WEIGHTS, _CONSTANTS = "models/", "data/weights/", "data/constants/"
_OLD_PROGRAM, _OLD_VERSION = "serialized_exported_program.json", "version"
_COMPILED = "data/aotinductor/"
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_END, _END64_PLACE, _END64 = b"PK\x05\x06", b"PK\x06\x07", b"PK\x06\x06"
_END_BYTES, _COMMENT_BYTES = 22, 1 << 16


@dataclass(frozen=True, slots=True)
class Description:
    """What an archive says of its program."""

    program: dict[str, Any]
    """The program, by the export schema."""
    payloads: dict[str, Any]
    """Members that hold weights and constants, by the name the program has for them."""


def read_description(path: Path) -> Description:
    """The description in the file of an exported program.

    Raises:
        UnknownTargetError: there is no such file.
        CaptureError: the file is none, is damaged, or holds something else than one program.
    """
    if not path.is_file():
        raise no_file(path, "torch.export.save writes .pt2 files")
    with path.open("rb") as file:
        return read_archive(file, str(path))


def read_archive(file: BinaryIO, name: str) -> Description:
    """The description in an open archive; see `read_description`."""
    try:
        _check_directory(file, name)
        with zipfile.ZipFile(file) as archive:
            return _described(archive, name)
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError) as error:
        raise CaptureError(
            f"{name} is no archive of torch.export.save, or is cut short ({error}); save it again"
        ) from error
    except (NotImplementedError, RuntimeError, UnicodeError) as error:  # encrypted, odd names
        raise CaptureError(
            f"{name} cannot be read: {error}; save it with torch.export.save"
        ) from error


def _described(archive: zipfile.ZipFile, name: str) -> Description:
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        if info.filename in members:
            raise CaptureError(f"{name} holds {info.filename!r} twice: the archive is damaged")
        members[info.filename] = info
    if _OLD_PROGRAM in members and _OLD_VERSION in members:  # PyTorch before 2.8
        return Description(_json(archive, members[_OLD_PROGRAM], name), {})
    root = next(iter(members), "").partition("/")[0]
    inside = {m.partition("/")[2]: i for m, i in members.items() if m.startswith(f"{root}/")}
    programs = [m for m in inside if m.startswith(_MODELS) and m.endswith(".json")]
    if not programs:
        raise CaptureError(_no_program(name, inside))
    if len(programs) > 1:
        raise CaptureError(
            f"{name} holds {len(programs)} programs ({', '.join(sorted(programs)[:5])}): save the "
            "one to estimate with torch.export.save"
        )
    payloads: dict[str, Any] = {}
    for member, info in inside.items():
        if member.startswith((_WEIGHTS, _CONSTANTS)) and member.endswith("_config.json"):
            config = _json(archive, info, name).get("config")
            if isinstance(config, dict):
                payloads |= config
    return Description(_json(archive, inside[programs[0]], name), payloads)


def _no_program(name: str, inside: dict[str, zipfile.ZipInfo]) -> str:
    if any(member.startswith(_COMPILED) for member in inside):
        return (
            f"{name} holds compiled code (AOTInductor) and no program: save the ExportedProgram "
            "that it was compiled from with torch.export.save"
        )
    if "data.pkl" in inside:
        return (
            f"{name} is a pickle of torch.save, and reading it would run its code (or it is cut "
            "short, and ends with one): save the program with torch.export.save"
        )
    return f"{name} is an archive without an exported program (models/*.json): torch.export.save"


def _json(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> dict[str, Any]:
    """A member that holds JSON, never read beyond the limit."""
    where = f"{name}: {info.filename}"
    if info.compress_type not in _METHODS:
        raise CaptureError(f"{where} is compressed in a way that torch.export.save does not use")
    try:
        with archive.open(info) as member:
            data = member.read(LARGEST_DESCRIPTION + 1)
    except (ValueError, OverflowError) as error:  # a place outside of any file
        raise zipfile.BadZipFile(f"{info.filename} is not where it should be: {error}") from error
    if len(data) > LARGEST_DESCRIPTION:
        raise CaptureError(
            f"{where} is larger than {LARGEST_DESCRIPTION >> 20} MiB, more than the description "
            "of any program: pass the ExportedProgram in memory, if it really is one"
        )
    try:
        return json_object(data)
    except ValueError as error:
        raise CaptureError(f"{where} is damaged, no description of a program: {error}") from error


def _check_directory(file: BinaryIO, name: str) -> None:
    """Refuse an archive whose list of members is absurdly long, before it is read."""
    size = file.seek(0, 2)
    tail_at = max(0, size - _END_BYTES - _COMMENT_BYTES)
    file.seek(tail_at)
    tail = file.read(_END_BYTES + _COMMENT_BYTES)
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < _END_BYTES:
        raise zipfile.BadZipFile("no list of members at the end")
    directory = struct.unpack_from("<L", tail, at + 12)[0]
    if directory == 0xFFFFFFFF and tail[max(at - 20, 0) : at].startswith(_END64_PLACE):
        file.seek(struct.unpack_from("<Q", tail, at - 12)[0])
        record = file.read(56)
        if not record.startswith(_END64):
            raise zipfile.BadZipFile("the list of members is not where it should be")
        directory = struct.unpack_from("<Q", record, 40)[0]
    if directory > min(LARGEST_DIRECTORY, size):
        raise CaptureError(
            f"{name} lists {directory:,} bytes of members, more than any program has: it is damaged"
        )
    file.seek(0)
