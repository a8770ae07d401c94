"""What is made of finished records for others: a version on the Hub, rows for trainers, a draft vocabulary.

Goes in: a run folder, Parquet files or a Hub data set. Comes out: what the command line prints.
"""
