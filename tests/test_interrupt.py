"""Ctrl-C at any moment: one line, status 130, within two seconds; and the examples that `--help` shows."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eagle3_data import arguments
from eagle3_data.cli import COMMANDS
from eagle3_data.errors import INTERRUPTED_TEXT

# the moments lie in the imports of the package, of `datasets` and `transformers`, and in the reading of a recipe
MOMENTS = (0.2, 0.35, 0.5, 0.7, 0.9, 1.1, 1.4, 1.7, 2.0, 2.3, 2.6)
_READY = (
    "import eagle3_data.__main__ as m, sys; sys.argv = ['eagle3-data', *sys.argv[1:]];"
    "import signal; signal.signal(signal.SIGINT, m._interrupt); print('ready', flush=True); m.entry()"
)


@pytest.mark.parametrize("moment", MOMENTS)
def test_interrupt_is_one_line(moment: float, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _READY, "plan", "quickstart", "--runs", str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(moment)
        process.send_signal(signal.SIGINT)
        sent = time.monotonic()
        _, said = process.communicate(timeout=60)
    took = time.monotonic() - sent
    if process.returncode == 0:
        pytest.skip("it had ended before the signal")
    assert (process.returncode, said) == (130, f"eagle3-data: {INTERRUPTED_TEXT}\n")
    assert took < 6  # two seconds on a machine that does nothing else


def test_an_interrupt_that_passed_through_exec_keeps_the_status() -> None:
    code = (
        "import eagle3_data.__main__ as m, eagle3_data.cli as c, os, signal\n"
        "def main():\n"
        "    exec('import os, signal; os.kill(os.getpid(), signal.SIGINT); [0 for _ in range(10**8)]')\n"
        "c.main = main; m.entry()"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (130, f"eagle3-data: {INTERRUPTED_TEXT}\n")


@pytest.mark.parametrize(
    "hold",
    [
        "try:\n  time.sleep(60)\n except BaseException: time.sleep(60)",
        "while True:\n  try: time.sleep(60)\n  except BaseException: pass",
    ],
    ids=["swallowed", "swallowed again and again"],
)
def test_an_interrupt_that_is_swallowed_ends_the_process_all_the_same(hold: str) -> None:
    code = (
        "import eagle3_data.__main__ as m, eagle3_data.cli as c, os, signal, threading, time\ndef main():\n"
        f" threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()\n {hold}\nc.main = main; m.entry()"
    )
    began = time.monotonic()
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (130, f"eagle3-data: {INTERRUPTED_TEXT}\n")
    assert time.monotonic() - began < 15


def test_every_command_has_a_function_and_an_example_that_parses() -> None:
    assert set(COMMANDS) == set(arguments.EXAMPLES)
    for name, example in arguments.EXAMPLES.items():
        words = shlex.split(example)
        assert words[0] == "eagle3-data"
        assert arguments.parser().parse_args(words[1:]).command == name


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_of_a_command_ends_with_its_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        arguments.parser().parse_args([name, "--help"])
    assert left.value.code == 0
    # a terminal's width may break the line, at a hyphen as well
    assert "".join(capsys.readouterr().out.split()).endswith("".join(f"example: {arguments.EXAMPLES[name]}".split()))
