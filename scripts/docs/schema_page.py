"""Tables as data -> a page of docs/ that describes every column of a report."""

from collections.abc import Mapping, Sequence

from snapconv.writers.sqlite.table_schema import Table, View

# What the values of a column mean: (table, column) -> (value, meaning).
Values = Mapping[tuple[str, str], Sequence[tuple[str, str]]]


def schema_page(
    introduction: str,
    *,
    skyline: tuple[str, Sequence[Table]],
    extended: tuple[str, Sequence[Table]],
    views: Sequence[View],
    examples: Sequence[tuple[str, str]],
    values: Values,
) -> str:
    """Write the page as Markdown: each kind of tables with its own text before them, then the queries."""

    def describe(items: Sequence[Table | View]) -> list[str]:
        return [_description(item, values) for item in items]

    sections = [
        introduction,
        skyline[0],
        *describe(skyline[1]),
        extended[0],
        *describe(extended[1]),
        "## The views of `--extended`",
        *describe(views),
        "## Questions and queries",
        *(f"{question}\n\n```sql\n{query}\n```" for question, query in examples),
    ]
    return "\n\n".join(sections) + "\n"


def _description(item: Table | View, values: Values) -> str:
    """Describe a table or a view, a line per column."""
    lines = [f"### `{item.name}`", "", item.meaning]
    if item.columns:
        lines += ["", "| column | type | unit | meaning | NULL means |", "|---|---|---|---|---|"]
    for column in item.columns:
        sql_type = column.sql_type.split()[0]
        cells = (f"`{column.name}`", sql_type, column.unit, column.meaning, column.null or "")
        lines.append(f"| {' | '.join(cells)} |")
    if isinstance(item, View) and item.continued_by:
        lines += ["", f"Then come the columns of `{item.continued_by.name}`."]
    for column in item.columns:
        if known := values.get((item.name, column.name)):
            lines += ["", f"| `{column.name}` | is |", "|---|---|"]
            lines += [f"| {_code(value)} | {meaning} |" for value, meaning in known]
    return "\n".join(lines)


def _code(values: str) -> str:
    return ", ".join(f"`{value}`" for value in values.split(", "))
