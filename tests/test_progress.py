"""What a run says on stderr while it works, and what it says of servers that are lost."""

import asyncio
import json
import logging
import warnings

import aiohttp
import pytest

from eagle3_data.generation.client.servers import Servers
from eagle3_data.generation.progress import Progress, SourceProgress
from eagle3_data.progress import json_log, shown


def look(**values: object) -> Progress:
    return Progress(sources={"B1": SourceProgress(total=10, done=4)}, **values)  # type: ignore[arg-type]


def test_piped_text_tells_of_pauses_and_draining_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with shown("auto") as show:
        for progress in (
            look(),
            look(),
            look(paused="no server answers"),
            look(paused="no server answers"),
            look(),
            look(draining=True, in_flight=3),
            look(draining=True, in_flight=2),
            look(draining=True, finished=True),
        ):
            show(progress)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 5, lines
    assert all(line.startswith("4 of 10 rows") for line in lines)
    assert lines[1].endswith("no server answers") and "no server" not in lines[2]
    assert lines[3].endswith("waiting for 3 answers in flight; Ctrl-C now gives them up")
    assert "Ctrl-C" not in lines[4]


def test_json_progress_is_json_lines_whatever_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    import datasets

    with json_log(), shown("json") as show:
        show(look())
        logging.getLogger("eagle3_data.generation.journal.journal").warning('%s: 3 "damaged" bytes\nskipped', "a.log")
        datasets.logging.get_logger("datasets.builder").error("from a library")
        warnings.warn("from Python", stacklevel=1)
        show(look(finished=True))
    first, log, library, python, last = map(json.loads, capsys.readouterr().err.splitlines())
    assert first == look().to_dict() and last["finished"]
    assert log == {"event": "log", "level": "warning", "message": 'a.log: 3 "damaged" bytes\nskipped'}
    assert library == {"event": "log", "level": "error", "message": "from a library"}
    assert python["level"] == "warning" and "from Python" in python["message"]
    logging.getLogger("eagle3_data").warning("as before")
    assert "event" not in capsys.readouterr().err


LOST = {
    "alone": (1, 1, "is lost; its rows wait until it returns"),
    "one of two": (2, 1, "is lost; its rows go elsewhere until it returns"),
    "the third time": (2, 3, "is lost (3 times so far); its rows go elsewhere until it returns"),
}


@pytest.mark.parametrize(("count", "losses", "text"), LOST.values(), ids=LOST)
def test_a_lost_server_is_told_as_it_is(count: int, losses: int, text: str, caplog: pytest.LogCaptureFixture) -> None:
    async def lose() -> None:
        servers = Servers(["http://127.0.0.1:1", "http://127.0.0.1:9"][:count])
        async with aiohttp.ClientSession() as servers._session:
            for server in servers.all:
                server.up = True
            servers.all[0].losses = losses - 1
            assert await servers.lost(servers.all[0])
            await servers.close()

    asyncio.run(lose())
    assert caplog.messages == [f"http://127.0.0.1:1 {text}"]
