"""Where results go: tables of Parquet files, and messages on the bus."""
