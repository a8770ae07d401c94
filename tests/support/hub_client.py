"""Clients of the test Hub: forked from one process that imported everything with HF_ENDPOINT already set.

Goes in: the name of a function of `hub_jobs` and its JSON arguments. Comes out: its JSON result, what it printed, and
how it ended: a job may be killed, as a real publisher is. `huggingface_hub` reads its endpoint when it is imported, so
the test process itself, which is offline, cannot be that client.
"""

import json
import os
import subprocess
import sys
import tempfile
import traceback
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Outcome:
    """How a job ended: its result, or the type and text of its error, or the signal that killed it."""

    result: Any
    error: str
    message: str
    signal: int
    output: str

    def get(self) -> Any:
        assert not self.error and not self.signal, (
            f"{self.error}: {self.message} (signal {self.signal})\n{self.output}"
        )
        return self.result


class TestHub:
    """The server and its clients, as a context manager."""

    __test__ = False

    def __init__(self, folder: Path, token: str, *arguments: str, python: str = sys.executable) -> None:
        self.folder, self.token, self.python = folder, token, python
        command = [sys.executable, str(HERE / "hub_server.py"), "--folder", str(folder / "blobs"), *arguments]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._server.stdout is not None
        self.url = self._server.stdout.readline().strip()
        self._zygote: subprocess.Popen[str] | None = None

    def __enter__(self) -> "TestHub":
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self._zygote, self._server):
            if process is not None:
                process.communicate(timeout=20)

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING_FACE"))}
        return {
            **kept,
            "HF_ENDPOINT": self.url,
            "HF_TOKEN": self.token,
            "HF_HOME": str(self.folder / "home"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "TRANSFORMERS_VERBOSITY": "error",
        }

    def run(self, function: str, **arguments: Any) -> Outcome:
        """Run a function of `hub_jobs` in a process of its own."""
        if self._zygote is None or self._zygote.poll() is not None:
            self._zygote = subprocess.Popen(
                [self.python, str(HERE / "hub_client.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=self.environment(),
            )
        assert self._zygote.stdin is not None and self._zygote.stdout is not None
        self._zygote.stdin.write(json.dumps({"function": function, "arguments": arguments}, default=str) + "\n")
        self._zygote.stdin.flush()
        return Outcome(**json.loads(self._zygote.stdout.readline()))

    def control(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/_test/{path}", data=data, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def fail(self, match: str, action: str = "status", **options: Any) -> None:
        self.control("POST", "faults", {"match": match, "action": action, **options})

    def heal(self) -> None:
        self.control("DELETE", "faults")

    def requests(self, match: str = "") -> list[dict[str, Any]]:
        return [entry for entry in self.control("GET", "requests") if match in f"{entry['method']} {entry['path']}"]

    def forget(self) -> None:
        self.control("DELETE", "requests")


def _job(line: str, place: Path) -> None:
    """Run one job in this forked process and write its outcome."""
    from support import hub_jobs

    outcome: dict[str, Any] = {"result": None, "error": "", "message": ""}
    order = json.loads(line)
    with (place / "output").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        try:
            outcome["result"] = getattr(hub_jobs, order["function"])(**order["arguments"])
        except BaseException as error:
            outcome |= {"error": type(error).__name__, "message": str(error)}
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    (place / "outcome").write_text(json.dumps(outcome, default=str))
    os._exit(0)


def main() -> None:
    sys.path[:0] = [str(HERE.parent)]
    from support import hub_jobs  # noqa: F401  imported once, before the forks

    for line in sys.stdin:
        with tempfile.TemporaryDirectory() as name:
            place = Path(name)
            child = os.fork()
            if child == 0:
                _job(line, place)
            _, status = os.waitpid(child, 0)
            killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            found = place / "outcome"
            outcome = json.loads(found.read_text()) if found.exists() else {"result": None, "error": "", "message": ""}
            output = (place / "output").read_text(errors="replace") if (place / "output").exists() else ""
            print(json.dumps({**outcome, "signal": killed, "output": output}), flush=True)


if __name__ == "__main__":
    main()
