"""Asks DuckDB, over S3, what the published nights say: as an analyst would, knowing only the bucket."""

from __future__ import annotations

from urllib.parse import urlsplit

import duckdb
import duckdb_extensions

from demo.servers.seaweed import S3Endpoint

POSITIVE_SHARE = """\
SELECT ds, count(*) AS reviews, avg((label = 'POSITIVE')::INT) AS positive
FROM read_parquet('s3://{bucket}/reviews_sentiment/predictions/ds=*/*.parquet', hive_partitioning = true)
WHERE ds BETWEEN '{first}' AND '{last}'
GROUP BY ds ORDER BY ds"""


def connect(s3: S3Endpoint) -> duckdb.DuckDBPyConnection:
    """A DuckDB that reads this S3 server; its extension comes from a wheel, not from the network."""
    connection = duckdb.connect()
    duckdb_extensions.import_extension("httpfs")
    connection.execute("LOAD httpfs")
    connection.execute(
        f"CREATE SECRET (TYPE s3, KEY_ID '{s3.access_key}', SECRET '{s3.secret_key}', REGION '{s3.region}', "
        f"ENDPOINT '{urlsplit(s3.url).netloc}', URL_STYLE 'path', USE_SSL false)"
    )
    return connection


def positive_share(s3: S3Endpoint, first: str, last: str) -> list[tuple[str, int, float]]:
    """Night, reviews and share of positive ones, for the nights from `first` to `last`."""
    query = POSITIVE_SHARE.format(bucket=s3.bucket, first=first, last=last)
    with connect(s3) as connection:
        return [(str(ds), int(count), float(share)) for ds, count, share in connection.execute(query).fetchall()]
