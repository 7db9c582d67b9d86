"""Published files: what is no table is refused by name, on one line."""

from __future__ import annotations

import pytest

from predictor.errors import DataError
from predictor.traces.files import encodable, parse_csv


def test_a_table_is_read_as_it_stands():
    table = parse_csv(b"\xef\xbb\xbfm,ms\r\n8,0.5\r\n16,\r\n", "t.csv")
    assert list(table.columns) == ["m", "ms"]
    assert table["m"].tolist() == [8, 16]


def test_fields_beyond_the_header_shift_no_column():
    with pytest.raises(DataError, match=r"t\.csv: rows have more fields than the header"):
        parse_csv(b"m,ms\n8,0.5,7\n16,0.6,7\n", "t.csv")
    ended = parse_csv(b"m,ms\n8,0.5,\n16,0.6,\n", "t.csv")
    assert ended.to_dict("list") == {"m": [8, 16], "ms": [0.5, 0.6]}


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", b"m,ms\n8,0.5\n8,0.5,7,9\n", b"m,ms\n\xff,0.5\n", b'm,ms\n"8,0.5\n']
)
def test_what_is_no_table_is_told_on_one_line(content):
    with pytest.raises(DataError, match=r"t\.csv: not readable as CSV") as refused:
        parse_csv(content, "t.csv")
    assert "\n" not in str(refused.value)


def test_half_characters_become_question_marks():
    assert encodable("a\ud800µ") == "a?µ"
