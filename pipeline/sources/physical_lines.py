"""Where lines of an object end: in bounded memory, also for a line without an end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

MAX_LINE_BYTES = 16 << 20
"""A longer line is no row."""
BOM = b"\xef\xbb\xbf"
_BLOCK_BYTES = 256 << 10


def newline_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """(bytes consumed, line without its end); lines end in LF or CRLF. One that is too long is cut over the limit."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        size = len(line)
        tail = line
        while len(tail) > MAX_LINE_BYTES and not tail.endswith(b"\n"):
            tail = file.readline(MAX_LINE_BYTES + 1)
            size += len(tail)
        yield size, line.rstrip(b"\n").removesuffix(b"\r")


def physical_lines(file: IO[bytes], position: int) -> Iterator[tuple[int, bytes]]:
    """(bytes consumed, line with its end) as CSV has them: lines end in LF, CRLF or a lone CR.

    `position` is that of `file` in the object: at 0 a byte order mark is left out. A line that is too long is cut
    over the limit.
    """
    begun = _Begun([])
    while block := file.read(_BLOCK_BYTES):
        lines = block.splitlines(keepends=True)
        ended = begun.after_cr
        if ended and lines[0] == b"\n":
            begun.add(lines.pop(0))
        rest = b"" if not lines or lines[-1].endswith(b"\n") else lines.pop()
        for line in [b"", *lines] if ended else lines:
            if begun.size:
                begun.add(line)
                yield begun.size, _without_bom(b"".join(begun.parts), position)
                position += begun.size
                begun = _Begun([])
            else:
                yield len(line), _without_bom(line, position)
                position += len(line)
        begun.add(rest)
    if begun.size:
        yield begun.size, _without_bom(b"".join(begun.parts), position)


@dataclass(slots=True)
class _Begun:
    """A line whose end has not been read yet."""

    parts: list[bytes]
    size: int = 0
    over: bool = False
    """Over the limit: of what follows only the last byte counts."""

    def add(self, part: bytes) -> None:
        if part and self.over:
            self.parts[-1] = part[-1:]
        elif part:
            self.parts.append(part)
            if self.size + len(part) > MAX_LINE_BYTES:
                self.over = True
                self.parts.append(part[-1:])
        self.size += len(part)

    @property
    def after_cr(self) -> bool:
        """Whether the line has ended, but for an LF that may come next."""
        return bool(self.parts) and self.parts[-1].endswith(b"\r")


def _without_bom(line: bytes, position: int) -> bytes:
    return line if position else line.removeprefix(BOM)
