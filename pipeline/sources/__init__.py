"""The sources of records: the sealed files of a log, a gateway over HTTP, and what is imported."""
