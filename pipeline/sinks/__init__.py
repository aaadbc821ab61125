"""Where results go: tables of Parquet files, and back on the bus."""
