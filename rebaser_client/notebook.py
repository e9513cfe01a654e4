"""Shows values in notebooks, as an Arrow table, and as a data frame. `rebaser_core.notebook` makes the HTML."""

from typing import TYPE_CHECKING

from rebaser_core.notebook import MAX_ROWS, definition_text, html_table, value_text
from rebaser_core.state.shown import data_frame
from rebaser_core.values import Value

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["MAX_ROWS", "Values", "definition_text", "html_table", "value_text"]


class Values(dict[str, Value]):
    """A dict of values by id, which notebooks display as a table."""

    __slots__ = ()

    def to_arrow(self) -> "pa.Table":
        """Return a `pyarrow.Table` with one row for each value, and these columns:

        - `id`, and `state`: `ok`, `stale`, `error` or `unset`.
        - `kind`: `null`, `boolean`, `integer`, `float`, `text`, `array` or `object`. `number` is the value if it is a
          number, rounded to a double, `text` is the value if it is text, and `json` is any value, exactly.
        - `error_code`, `error_message`, and `error_origin`, the id of the value in which the failure began.

        All columns except `number` contain text. A cell is null if its column does not apply to the value.
        """
        from rebaser_client.arrow import values_table  # noqa: PLC0415 - pyarrow is large

        return values_table(self)

    def to_pandas(self) -> "pd.DataFrame":
        """Return a `pandas.DataFrame` with the rows and columns of `to_arrow`.

        Raise `ConfigError` if pandas is not installed.
        """
        return data_frame(self.to_arrow())

    def _repr_html_(self) -> str:
        rows = ((id_, value.state.value, value_text(value)) for id_, value in self.items())
        return html_table(f"{len(self):,} values", ("id", "state", "value"), rows, len(self))
