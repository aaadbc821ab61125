"""From table to table: pure functions of DataFrames. No session, no input or output."""
