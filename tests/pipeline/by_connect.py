"""Opens a warehouse over Spark Connect, in a Python that has the client: URL WAREHOUSE; prints JSON."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from pipeline.catalog import register
from tests.pipeline.found import found

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
register(spark, sys.argv[2])
sys.stdout.write(json.dumps(found(spark)))
spark.stop()
