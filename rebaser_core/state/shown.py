"""Shows a state in notebooks, and exports its values as an Arrow table and as a data frame."""

from typing import TYPE_CHECKING

from rebaser_core.errors import ConfigError
from rebaser_core.values import State

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from rebaser_core.state.overlay import Cells  # imports NumPy, which a client without states does not need


class ShownState:
    """The methods of `ChangeSetState` for notebooks. No view of the state may be open when they are called."""

    last: int
    cells: "Cells"

    def stale(self) -> set[str]:
        """Return the ids of the derived values that are not up to date."""
        raise NotImplementedError

    def to_arrow(self) -> "pa.Table":
        """Return a `pyarrow.Table` with one row for each value, and these columns:

        - `id`, and `state`: `ok`, `stale`, `error` or `unset`.
        - `kind`: `null`, `boolean`, `integer`, `float`, `text`, `array` or `object`. `number` is the value if it is a
          number, rounded to a double, `text` is the value if it is text, and `json` is any value, exactly.
        - `error_code`, `error_message`, and `error_origin`, the id of the value in which the failure began.

        All columns except `number` contain text. A cell is null if its column does not apply to the value.
        """
        from rebaser_core.state.table import table_of  # noqa: PLC0415 - pyarrow is large

        stale = self.stale()  # this also merges the overlay, so all values are then in the columns
        return table_of(self.cells.columns, stale)

    def to_pandas(self) -> "pd.DataFrame":
        """Return a `pandas.DataFrame` with the rows and columns of `to_arrow`.

        Raise `ConfigError` if pandas is not installed.
        """
        return data_frame(self.to_arrow())

    def _repr_html_(self) -> str:
        from rebaser_core.notebook import html_table, value_text  # noqa: PLC0415 - only notebooks need it

        stale = self.stale()
        rows = (
            (id_, State.STALE.value if id_ in stale else value.state.value, value_text(value))
            for id_, value in self.cells.iter_values()
        )
        count = len(self.cells)
        caption = f"{count:,} values after commit {self.last}" + (f", {len(stale):,} of them stale" if stale else "")
        return html_table(caption, ("id", "state", "value"), rows, count)


def data_frame(table: "pa.Table") -> "pd.DataFrame":
    """Return `table` as a `pandas.DataFrame`. Raise `ConfigError` if pandas is not installed."""
    try:
        import pandas as pd  # noqa: PLC0415 - optional
    except ModuleNotFoundError as error:
        if error.name != "pandas":
            raise
        raise ConfigError("to_pandas needs pandas: pip install pandas") from None
    frame: pd.DataFrame = table.to_pandas()
    return frame
