"""The stream of events: any cut of the text into pieces gives the same events."""

from __future__ import annotations

import gzip
import io
import json
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.errors import DataError
from predictor.traces.kineto import content as content_module
from predictor.traces.kineto.content import TraceContent, head_of
from predictor.traces.kineto.scan import JsonStream

TEXTS = st.text(alphabet='ab{}[]",:\\ \né…0', max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
EVENTS = st.lists(st.dictionaries(TEXTS, VALUES, max_size=4), max_size=8)


def scanned(pieces, long="traceEvents"):
    stream = JsonStream(iter(pieces), "t.json")
    head, events = {}, []
    for key, value in stream.members(long):
        if key == long:
            events.extend(value)
        else:
            head[key] = value
    stream.finish()
    return head, events, stream.mended


def cut(text, size):
    return [text[i : i + size] for i in range(0, len(text), size)]


@settings(deadline=None)
@given(
    events=EVENTS, before=VALUES, after=VALUES, size=st.integers(1, 40),
    indent=st.sampled_from([None, 1]), ascii_=st.booleans(),
)  # fmt: skip
def test_pieces_of_any_size_give_what_the_whole_gives(events, before, after, size, indent, ascii_):
    document = {"before": before, "traceEvents": events, "after": after}
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_)
    assert scanned(cut(text, size)) == ({"before": before, "after": after}, events, 0)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_small_pieces_are_read_when_the_buffer_asks_for_little(monkeypatch, size):
    monkeypatch.setattr("predictor.traces.kineto.scan._PIECE_CHARS", 1)
    text = '{"a": 123456, "traceEvents": [{"n": "x}]"}, {"n": 12}], "b": 7.25}'
    head, events, _ = scanned(cut(text, size))
    assert head == {"a": 123456, "b": "7.25"}
    assert events == [{"n": "x}]"}, {"n": 12}]


def test_a_list_of_events_is_a_trace_too():
    assert scanned(['[{"ph": "X"}, {"ph"', ': "M"}]'])[1] == [{"ph": "X"}, {"ph": "M"}]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('{"b": inf}', {"b": None}),
        ('{"b": -nan, "c": "inf"}', {"b": None, "c": "inf"}),
        ('{"b": -nan(ind)}', {"b": None}),
        ('{"b": N/A, "c": "N/A"}', {"b": None, "c": "N/A"}),
        ('{"b": [1, 2,], "c": 3,}', {"b": [1, 2], "c": 3}),
        (r'{"b": "C:\src\nccl", "c": "\u12"}', {"b": "C:\\src\nccl", "c": "\\u12"}),
    ],
)
def test_known_faults_of_writers_are_mended_and_counted(written, read):
    _, events, mended = scanned([f'{{"traceEvents": [{{"a": 1}}, {written}, {{"z": 2}},]}}'])
    assert events == [{"a": 1}, read, {"z": 2}]
    assert mended == 1


def test_control_characters_and_not_a_number_are_read_as_they_stand():
    _, events, mended = scanned(['{"traceEvents": [{"n": "a\tb\n", "v": NaN, "w": Infinity}]}'])
    assert (events, mended) == ([{"n": "a\tb\n", "v": None, "w": None}], 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cut off"),
        ("hello", "no JSON object"),
        ('{"traceEvents": [{"a": 1}, {"b": ', "cut off after 33 characters"),
        ('{"traceEvents": [{"a": 1}', "cut off"),
        ('{"traceEvents": [{"a": 1}]', "cut off"),
        ('{"traceEvents": [{"a": 1}, {"b" 2}, {"c": 3}]}', "no JSON near character 27"),
        ('{"traceEvents": [{"n": "say "hi" now"}]}', "no JSON near character"),
        ('{"traceEvents" [1]}', "expected a colon"),
        ("{traceEvents: []}", "expected a key"),
        ('{"traceEvents": []} tail', "no JSON near character 20 .expected the end of the file"),
        ('{"traceEvents": []}{"traceEvents": []}', "near character 19 .expected the end"),
        ('[{"a": 1}] 5', "near character 11 .expected the end of the file, found '5'"),
    ],
)
def test_what_cannot_be_mended_is_refused_with_the_place(text, message):
    with pytest.raises(DataError, match=message):
        scanned([text])


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_only_space_may_follow_the_document(monkeypatch, size):
    monkeypatch.setattr("predictor.traces.kineto.scan._PIECE_CHARS", 1)
    text = '{"traceEvents": [{"a": 1}]}'
    assert scanned(cut(f"{text} \n\t\r\n", size))[1] == [{"a": 1}]
    with pytest.raises(DataError, match="near character 29"):
        scanned(cut(f"{text} \n\0", size))


def packed(text, kind):
    data = text.encode()
    if kind == "plain":
        return data
    if kind == "gzip":
        return gzip.compress(data)
    if kind == "two gzip members":
        return gzip.compress(data[:9]) + gzip.compress(data[9:])
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz" if kind == "tar.gz" else "w") as archive:
        info = tarfile.TarInfo("inner.json")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


KINDS = ("plain", "gzip", "two gzip members", "tar", "tar.gz")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_packing_is_known_by_content_not_by_name(tmp_path, monkeypatch, kind, suffix):
    monkeypatch.setattr(content_module, "CHUNK_BYTES", 64)
    text = json.dumps({"traceEvents": [{"name": "é" * 50, "n": i} for i in range(40)]})
    path = tmp_path / f"t{suffix}"
    path.write_bytes(packed(text, kind))
    assert "".join(TraceContent(path=path, name="t").pieces()) == text
    assert head_of(path, 20) == text[:20]


def test_a_byte_order_mark_and_broken_utf8_do_not_stop_the_reading(tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": "\xff"}')
    assert "".join(TraceContent(path=path, name="t").pieces()) == '{"a": "�"}'


@pytest.mark.parametrize("damage", [lambda d: d[:-20], lambda d: d[:40] + b"zz" + d[42:]])
def test_a_damaged_gzip_stream_is_refused(tmp_path, damage):
    path = tmp_path / "t.json.gz"
    path.write_bytes(damage(gzip.compress(json.dumps(list(range(2000))).encode())))
    with pytest.raises(DataError, match=r"t\.json\.gz: cannot be read"):
        list(TraceContent(path=path, name="t.json.gz").pieces())


def test_an_archive_of_several_files_is_refused(tmp_path):
    path = tmp_path / "t.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("a.json", "b.json"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO(b""))
    with pytest.raises(DataError, match="an archive of 2 files"):
        list(TraceContent(path=path, name="t.tar").pieces())


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 50_000 + "]" * 50_000, "[" * 50_000])
@pytest.mark.parametrize("document", ['{{"traceEvents": [{{}}, {}]}}', '{{"head": {}}}'])
def test_values_beyond_every_parser_are_refused(document, value):
    with pytest.raises(DataError, match=r"t\.json: a value near character \d+ cannot be read"):
        scanned([document.format(value)])


def test_a_broken_archive_is_told_on_one_line(tmp_path):
    path = tmp_path / "t.json.tar"
    path.write_bytes(b"\0" * 257 + b"ustar" + b"\0" * 1000)
    with pytest.raises(DataError, match=r"t\.json\.tar: cannot be read") as refused:
        list(TraceContent(path=path, name=path.name).pieces())
    assert "\n" not in str(refused.value)
