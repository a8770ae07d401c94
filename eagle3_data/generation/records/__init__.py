"""From answers to the record files: the columns, the writer, Parquet, the holdout split."""
