"""Every invariant of a record: run folders, Parquet files and Hub versions in, a report of violations out."""
