"""Nightly batch inference: dataset -> tokenised splits -> shards -> Parquet and a report."""
