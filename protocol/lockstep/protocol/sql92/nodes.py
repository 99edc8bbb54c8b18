"""The parts of an SQL92 condition. `str` is its canonical text: equal conditions that are written differently have equal texts."""

from dataclasses import dataclass
from typing import Literal

Ordering = Literal["=", "<>", "<", "<=", ">", ">="]
TextSearch = Literal["CONTAINS", "STARTSWITH", "ENDSWITH"]


@dataclass(frozen=True, slots=True)
class PropertyName:
    """The value of a property."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Text:
    value: str

    def __str__(self) -> str:
        return "'" + self.value.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class Number:
    value: int | float

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Boolean:
    """TRUE or FALSE: as a value, or as a condition."""

    value: bool

    def __str__(self) -> str:
        return "TRUE" if self.value else "FALSE"


Value = PropertyName | Text | Number | Boolean


@dataclass(frozen=True, slots=True)
class Comparison:
    left: Value
    ordering: Ordering
    right: Value

    def __str__(self) -> str:
        return f"{self.left} {self.ordering} {self.right}"


@dataclass(frozen=True, slots=True)
class Between:
    value: Value
    low: Value
    high: Value
    negated: bool

    def __str__(self) -> str:
        return f"{self.value} {_negated(self.negated)}BETWEEN {self.low} AND {self.high}"


@dataclass(frozen=True, slots=True)
class In:
    name: PropertyName
    texts: tuple[str, ...]
    """Sorted, each once."""
    negated: bool

    def __str__(self) -> str:
        return f"{self.name} {_negated(self.negated)}IN ({', '.join(str(Text(each)) for each in self.texts)})"


@dataclass(frozen=True, slots=True)
class Contains:
    """CONTAINS, STARTSWITH and ENDSWITH."""

    name: PropertyName
    search: TextSearch
    text: str
    negated: bool

    def __str__(self) -> str:
        return f"{self.name} {_negated(self.negated)}{self.search} {Text(self.text)}"


@dataclass(frozen=True, slots=True)
class IsNull:
    """Whether a property is missing, or a condition is unknown."""

    operand: "PropertyName | Condition"
    negated: bool

    def __str__(self) -> str:
        shown = str(self.operand) if isinstance(self.operand, PropertyName) else f"({self.operand})"
        return f"{shown} IS {_negated(self.negated)}NULL"


@dataclass(frozen=True, slots=True)
class Not:
    condition: "Condition"

    def __str__(self) -> str:
        return f"NOT ({self.condition})"


@dataclass(frozen=True, slots=True)
class And:
    conditions: tuple["Condition", ...]

    def __str__(self) -> str:
        return " AND ".join(f"({each})" if isinstance(each, Or) else str(each) for each in self.conditions)


@dataclass(frozen=True, slots=True)
class Or:
    conditions: tuple["Condition", ...]

    def __str__(self) -> str:
        return " OR ".join(map(str, self.conditions))


Condition = Comparison | Between | In | Contains | IsNull | Not | And | Or | Boolean


def count_comparisons(condition: Condition) -> int:
    """Return how many comparisons the evaluation of a condition makes at most."""
    match condition:
        case And(conditions) | Or(conditions):
            return sum(map(count_comparisons, conditions))
        case Not(inner):
            return count_comparisons(inner)
        case IsNull(operand) if not isinstance(operand, PropertyName):
            return count_comparisons(operand)
    return 1


def _negated(negated: bool) -> str:
    return "NOT " if negated else ""
