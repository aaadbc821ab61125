"""Functions of rows, as Spark runs them: a column at a time, over Arrow, which needs no pandas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructType

if TYPE_CHECKING:
    from pyspark.sql import Column

_ARROW: Callable[..., Callable[..., Column]] = arrow_udf  # its types name every number of columns but not any number


def rowwise(function: Callable[..., Any], kind: DataType) -> Callable[..., Column]:
    """*function*, which takes the values of one row and answers one of *kind* (of a struct: a tuple), for columns.

    A null among the values is None; *function* must be importable by the workers.
    """
    return columnwise(lambda *columns: [function(*row) for row in zip(*columns, strict=True)], kind)


def columnwise(function: Callable[..., Sequence[Any]], kind: DataType) -> Callable[..., Column]:
    """As `rowwise`, of a *function* that takes the values of many rows, a list for each column, and answers as many."""
    if isinstance(kind, StructType):
        names, kinds = kind.fieldNames(), [to_arrow_type(field.dataType) for field in kind]

        def structs(*columns: pa.Array) -> pa.Array:
            answers = function(*(column.to_pylist() for column in columns))
            fields = zip(*answers, strict=True) if answers else [()] * len(kinds)
            arrays = [pa.array(field, kind) for field, kind in zip(fields, kinds, strict=True)]
            return pa.StructArray.from_arrays(arrays, names)

        return _ARROW(structs, kind)
    arrow = to_arrow_type(kind)

    def values(*columns: pa.Array) -> pa.Array:
        return pa.array(function(*(column.to_pylist() for column in columns)), arrow)

    return _ARROW(values, kind)
