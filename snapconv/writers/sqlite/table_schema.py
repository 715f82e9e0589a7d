"""Tables and views as data: their SQL, and what every column means, side by side.

A writer creates tables from it and docs/reference/schema.md is printed from it, so the two cannot differ.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """A column; ``null`` is what NULL means, or is None where NULL cannot be.

    ``stands_for_null`` is the value with the same meaning in a Report's column, which has no NULL.
    """

    name: str
    sql_type: str
    meaning: str
    unit: str = ""
    null: str | None = None
    stands_for_null: int | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table with the exact text of its CREATE statement."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    sql: str

    def insert_sql(self, n_rows: int) -> str:
        """The statement that inserts so many rows, and turns what stands for NULL into NULL."""
        stand_ins = (column.stands_for_null for column in self.columns)
        values = ("?" if stand_in is None else f"nullif(?, {stand_in})" for stand_in in stand_ins)
        row = f"({', '.join(values)})"
        return f"INSERT INTO {self.name} VALUES {', '.join([row] * n_rows)}"


@dataclass(frozen=True, slots=True)
class View:
    """A view with the exact text of its CREATE statement.

    After its own ``columns`` come those of ``continued_by``, another view.
    """

    name: str
    meaning: str
    columns: tuple[Column, ...]
    sql: str
    continued_by: "View | None" = None


def define_table(name: str, meaning: str, *columns: Column, primary_key: str = "") -> Table:
    """Make a table whose CREATE statement follows from its columns.

    ``primary_key`` names the columns of a key of several; the rows are then stored in its order.
    """
    lines = [_declaration(column) for column in columns]
    if primary_key:
        lines.append(f"PRIMARY KEY ({primary_key})")
    body = ",\n  ".join(lines)
    ending = ") WITHOUT ROWID" if primary_key else ")"
    return Table(name, meaning, columns, f"CREATE TABLE {name} (\n  {body}\n{ending}")


def _declaration(column: Column) -> str:
    needs_not_null = column.null is None and "PRIMARY KEY" not in column.sql_type
    return f"{column.name} {column.sql_type}{' NOT NULL' if needs_not_null else ''}"
