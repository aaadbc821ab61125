"""The report: one HTML page with charts that needs no network."""
