"""Answers that repeat themselves until a cap cuts them: not continued, counted, and what they cost is told."""

from pathlib import Path

import pyarrow.parquet as pq
from support.generate_server import GenerateServer
from support.generation import PlainTarget, prompts, serving

from eagle3_data.generation import Generator, run_generation, write_records
from eagle3_data.generation.records.writer import SourceCounts
from eagle3_data.pipeline.generated import Generated, loop_costs
from eagle3_data.run_folder import RunFolder

ROWS, CAP, HIGHER = 24, 200, 400


class LoopingServer(GenerateServer):
    """Repeats five ids for ever in answer to every third prompt."""

    @staticmethod
    def loops(ids: list[int]) -> bool:
        return ids[5] % 3 == 0

    def written(self, ids: list[int], budget: int) -> tuple[list[int], bool]:
        if not self.loops(ids):
            return super().written(ids, budget)
        return [50 + (len(ids) + at) % 5 for at in range(budget)], False


def test_looping_rows_are_left_alone_and_what_they_cost_is_told(tmp_path: Path) -> None:
    server, run, given = LoopingServer(stop_every=150), RunFolder(tmp_path), {"B1": prompts(ROWS)}
    with serving(server) as url:
        for cap, extend in ((CAP, False), (HIGHER, True)):
            before = len(server.requests)
            with Generator(PlainTarget(), [url], {"temperature": 0.0}, cap, run.journal_path, extend=extend) as step:
                run_generation(given, step, handle_signals=False)
            asked = server.requests[before:]
            counts = write_records(given, run, PlainTarget())["B1"]
            rows = pq.read_table(run.record_files("B1")[0]).to_pylist()
            looping = [row for row in rows if server.loops(row["input_ids"])]
            assert len(looping) == ROWS / 3
            assert [row["loop_tokens"] for row in rows if row not in looping] == [0] * (len(rows) - len(looping))
            for row in looping:  # everything but the first period is a repetition
                assert (row["completion_tokens"], row["loop_tokens"], row["rounds"]) == (CAP, CAP - 5, 1)
            assert (counts.looping, counts.looping_tokens) == (len(looping), CAP * len(looping))
            assert write_records(given, run, PlainTarget())["B1"] == counts, "also where the files stand already"
    assert asked and not any(server.loops(request["input_ids"]) for request in asked)


def test_the_table_of_a_run_says_what_loops_cost() -> None:
    counts = {
        "B1": SourceCounts(records=9, completion_tokens=900),
        "B4": SourceCounts(records=9, truncated=4, looping=3, looping_tokens=3072, completion_tokens=9000),
    }
    assert loop_costs(counts) == {"B4": "3 with 3,072 of its 9,000 output tokens (34.1 %)"}
    told = [line for line in Generated(Path("runs/mine"), counts).to_text().splitlines() if "repeat" in line]
    assert told == [
        "answers that repeat themselves until they are cut: B4 3 with 3,072 of its 9,000 output tokens (34.1 %); "
        "--drop loop leaves them out"
    ]
