"""The data pipeline: what the gateway logged becomes tables, audits, statistics and a report, with Apache Spark.

Nothing of the gateway imports it. It reads the log's files, or `GET /v1/log`, and shares the gateway's pure codecs.
"""
