"""The data pipeline: makes tables, audits, statistics and a report of the gateway's log, with Apache Spark.

Nothing of the gateway imports it. It reads the log's files, or `GET /v1/log`, and shares the gateway's pure codecs.
"""
