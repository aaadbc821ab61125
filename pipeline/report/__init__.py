"""The report: one HTML page with pictures that needs no network."""
