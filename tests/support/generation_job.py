"""A run as a program, for tests that kill it: answers prompts over servers and writes the records.

    python generation_job.py FOLDER --urls URL,… [--rows N] [--shard I/N] [--no-write]
Exits 0 when every row has an outcome, 130 when interrupted, 3 and 4 as the package's errors say.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.generation import PlainTarget, prompts

from eagle3_data.errors import Eagle3DataError
from eagle3_data.generation import Generator, RetryPolicy, run_generation, write_records
from eagle3_data.run_folder import RunFolder


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--urls")
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--no-write", action="store_true")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--timeout", type=float, default=2.0)
    arguments = parser.parse_args(given)
    run = RunFolder(arguments.folder)
    rows = {
        "B1": prompts(arguments.rows),
        "B8": prompts(arguments.rows // 2, "B8", start=arguments.rows, turns=5),
    }
    shard, shards = map(int, arguments.shard.split("/"))
    try:
        with Generator(
            PlainTarget(),
            arguments.urls.split(","),
            {"temperature": 0.0},
            {"B1": 40, "B8": 60},
            run.journal_path,
            concurrency=16,
            request_timeout=arguments.timeout,
            retries=RetryPolicy(attempts=20, first_wait=0.02, longest_wait=0.2),
            shard=(shard, shards),
        ) as step:
            result = run_generation(rows, step)
            if arguments.report:
                print(json.dumps(result.progress.to_dict()))
            if result.interrupted:
                return 130
            if not arguments.no_write:
                write_records(rows, run, PlainTarget(), holdout={"B1": 7}, journal=step.journal)
    except Eagle3DataError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
