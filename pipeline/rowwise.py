"""Turns functions of rows into Arrow UDFs, which Spark calls with whole columns; pandas is not needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructType

if TYPE_CHECKING:
    from pyspark.sql import Column

_ARROW: Callable[..., Callable[..., Column]] = arrow_udf  # PySpark's types do not allow a variable number of columns


def rowwise(function: Callable[..., Any], kind: DataType) -> Callable[..., Column]:
    """Turn *function* of the values of one row into a UDF that returns a column of *kind*; a struct is a tuple.

    A null value is passed as None. The workers must be able to import *function*.
    """
    return columnwise(lambda *columns: [function(*row) for row in zip(*columns, strict=True)], kind)


def columnwise(function: Callable[..., Sequence[Any]], kind: DataType) -> Callable[..., Column]:
    """Turn *function*, which takes a list for each column and returns a value for each row, into a UDF."""
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
