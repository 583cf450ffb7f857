"""Takes the text of a Slurm node list apart; each mistake with its position, from 1."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

# More digits than a number in the name of a host ever has.
_MOST_DIGITS = 18
_MOST_SHOWN = 200

_LITERAL = re.compile(r"[A-Za-z0-9._-]+")
_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True)
class Range:
    """Numbers in a bracket, such as 008-010.

    Args:
        numbers: The numbers.
        width: How many digits each has at least, with zeros before it.

    Example:
        >>> list(Range(range(9, 11), 3))
        ['009', '010']
    """

    numbers: range
    width: int

    def __iter__(self) -> Iterator[str]:
        return (f"{number:0{self.width}}" for number in self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def most_characters(self) -> int:
        """How many characters the longest number has."""
        return max(self.width, len(str(self.numbers[-1])))


# What all hosts of a name share, or what stands in a bracket of it.
Piece = str | tuple[Range, ...]


class NodeListText:
    """A node list, and what its errors say about it.

    Args:
        text: The list.
        place: What it is called in errors.

    Example:
        >>> [pieces for _, pieces in NodeListText("a,b[1-2]", "node list").names()]
        [['a'], ['b', (Range(numbers=range(1, 3), width=1),)]]
    """

    def __init__(self, text: str, place: str) -> None:
        self._text = text
        self._place = place

    def names(self) -> Iterator[tuple[int, list[Piece]]]:
        """Yield each name in pieces, with the position where it begins.

        Raises:
            ValueError: If the list is empty or malformed.
        """
        if not self._text:
            refuse(f"{self._place} is empty.", "", "Name at least one host.")
        start = position = 0
        pieces: list[Piece] = []
        while position < len(self._text):
            literal = _LITERAL.match(self._text, position)
            if literal is not None:
                pieces.append(literal[0])
                position = literal.end()
            elif self._text[position] == "[":
                end = self._end_of_bracket(position)
                pieces.append(self._bracket(position + 1, end))
                position = end + 1
            elif self._text[position] == "," and pieces:
                yield start, pieces
                position += 1
                start, pieces = position, []
            else:
                self._refuse_character(position)
        if not pieces:
            self._refuse_character(position)
        yield start, pieces

    def refuse_at(self, position: int, problem: str, advice: str) -> NoReturn:
        """Refuse the list for what stands at a position.

        Args:
            position: Where it stands, from 0.
            problem: What is wrong there.
            advice: What to do.

        Raises:
            ValueError: Always.
        """
        where = f"{self._place} {problem}, at character {position + 1}."
        refuse(where, self._text, advice)

    def _end_of_bracket(self, start: int) -> int:
        """Return where the bracket closes that opens at a position."""
        end = self._text.find("]", start)
        inner = self._text.find("[", start + 1, end if end != -1 else None)
        if inner != -1:
            self.refuse_at(
                inner,
                "has a bracket within a bracket",
                "Close each bracket before the next one opens.",
            )
        if end == -1:
            self.refuse_at(
                start, "has a bracket that never closes", 'Write it as "node[1-4]".'
            )
        return end

    def _bracket(self, start: int, end: int) -> tuple[Range, ...]:
        """Return the ranges between two positions."""
        ranges = []
        for part in self._text[start:end].split(","):
            ranges.append(self._range(part, start))
            start += len(part) + 1
        return tuple(ranges)

    def _range(self, part: str, start: int) -> Range:
        """Return one range."""
        ends = part.split("-")
        if len(ends) > 2 or not all(_NUMBER.fullmatch(number) for number in ends):
            self.refuse_at(
                start,
                "must have a number such as 7 or a range such as 1-3 in its brackets",
                "Separate them by single commas, without blanks.",
            )
        if max(map(len, ends)) > _MOST_DIGITS:
            self.refuse_at(
                start,
                f"has a number of more than {_MOST_DIGITS} digits",
                "Use the numbers in the names of the hosts.",
            )
        first, last = int(ends[0]), int(ends[-1])
        if first > last:
            self.refuse_at(
                start,
                "has a range that ends before it begins",
                "Write the smaller number first.",
            )
        return Range(range(first, last + 1), len(ends[0]))

    def _refuse_character(self, position: int) -> NoReturn:
        """Say what is wrong with a character that can stand in no name."""
        found = self._text[position : position + 1]
        if found in ("", ","):
            problem, advice = "lacks a name", "Separate the names by single commas."
        elif found == "]":
            problem, advice = "closes a bracket that is not open", "Open it before."
        elif found.isspace():
            problem, advice = "has a blank", "Separate the names by commas alone."
        else:
            problem = f"has {found!r}, which no name of a host has"
            advice = "Write the names as Slurm shows them."
        self.refuse_at(position, problem, advice)


def refuse(problem: str, text: str, advice: str) -> NoReturn:
    """Raise the error about a text, of which a long one is not shown whole.

    Args:
        problem: What is wrong.
        text: What was received.
        advice: What to do.

    Raises:
        ValueError: Always.
    """
    shown = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
    raise ValueError(f"{problem} Received: {shown!r}. {advice}")
