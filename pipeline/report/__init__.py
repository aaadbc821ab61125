"""The report: one HTML page with charts that needs no network, and its numbers as JSON."""
