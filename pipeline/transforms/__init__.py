"""Transforms tables into tables: pure functions of DataFrames, without a session or I/O."""
