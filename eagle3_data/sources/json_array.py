"""The elements of a JSON array in a file, one at a time.

Goes in: an open .json file whose value is an array, however long. Comes out: its elements in order; no more is held
than one element and a read buffer.
"""

import codecs
import json
from collections.abc import Iterator
from typing import IO, Any, Final

from eagle3_data.errors import SourceError
from eagle3_data.sources.columns import LARGEST_ROW, expands, row_too_long

_CHUNK: Final = 1 << 20


def array_rows(file: IO[bytes], name: str, most: int | None = None) -> Iterator[tuple[int, Any]]:
    """Yield (number, value) for each element, through a buffer that grows only for a long element.

    Raises:
        SourceError: not one JSON array in UTF-8, an element above the bound, or more than `most` bytes.
    """
    decoder = json.JSONDecoder()
    decode = _utf8_pieces(file, name, most)
    text, position, consumed, number, ended = "", 0, 0, 0, False
    expect_value, opened = True, False

    def fail(what: str) -> SourceError:
        return SourceError(
            f"{name}: not a JSON array of rows ({what} at character {consumed + position}, row {number})"
        )

    while True:
        while position < len(text) and text[position] in " \t\r\n":
            position += 1
        if position >= len(text):
            piece = None if ended else next(decode, None)
            if piece is None:
                raise fail("the file ends before the array does")
            consumed += len(text)
            text, position = piece, 0
            continue
        mark = text[position]
        if not opened:
            opened, position = True, position + 1  # the opening bracket, seen by the caller
        elif mark == "]" and (not expect_value or number == 0):
            if text[position + 1 :].strip() or any(piece.strip() for piece in decode):
                position += 1
                raise fail("text after the array")
            return
        elif not expect_value:
            if mark != ",":
                raise fail("no comma between two rows")
            expect_value, position = True, position + 1
        else:
            try:
                value, end = decoder.raw_decode(text, position)
                if end >= len(text) - 1 and not ended:
                    raise json.JSONDecodeError("more may follow", text, len(text))
            except RecursionError:
                raise fail("a row is nested too deeply") from None
            except json.JSONDecodeError as error:
                # The decoder cannot say "incomplete": a string without its end, or a fault at the very end, is.
                incomplete = error.msg.startswith("Unterminated string") or error.pos >= len(text) - 16
                if len(text) - position > LARGEST_ROW:
                    raise row_too_long(name, number) from None
                if ended or not incomplete:
                    raise fail(error.msg) from None
                text, consumed = text[position:], consumed + position
                position = 0
                pieces, grown = [text], 0
                while grown <= len(text):  # doubling keeps the cost of a long row linear
                    piece = next(decode, None)
                    if piece is None:
                        ended = True
                        break
                    pieces.append(piece)
                    grown += len(piece)
                text = "".join(pieces)
                continue
            if end - position > LARGEST_ROW:
                raise row_too_long(name, number)
            yield number, value
            number += 1
            position, expect_value = end, False


def _utf8_pieces(file: IO[bytes], name: str, most: int | None) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    read = 0
    try:
        while data := file.read(_CHUNK):
            read += len(data)
            if most is not None and read > most:
                raise expands(name)
            yield decoder.decode(data)
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise SourceError(f"{name}: not UTF-8 text ({error}); fetch the file again") from error
