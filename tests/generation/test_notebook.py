"""`step.map`: the same rows in a script, in a running event loop and in a Jupyter cell."""

import asyncio
import textwrap
from pathlib import Path

import pytest
from support.generate_server import GenerateServer
from support.generation import PlainTarget, prompts, serving

from eagle3_data.generation import Generator, records


def test_a_running_event_loop_gets_what_a_script_gets(tmp_path: Path) -> None:
    given = prompts(30)
    with serving(server := GenerateServer()) as url:

        def step(name: str) -> Generator:
            return Generator(PlainTarget(), [url], {"temperature": 0.0}, 40, tmp_path / name)

        async def cell() -> list[dict[str, object]]:
            with step("cell") as generator:
                return records(generator.map(given)).to_list()

        with step("plain") as generator:
            plain = records(given.map(generator.generate)).to_list()
        with step("script") as generator:
            assert records(generator.map(given)).to_list() == plain
        assert asyncio.run(cell()) == plain and len(plain) == 30
    assert len(server.requests) == 90


def test_in_a_real_jupyter_kernel(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    with serving(GenerateServer()) as url:
        cells = [
            f"""
            import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})
            import eagle3_data
            from support.generation import PlainTarget, prompts
            step = eagle3_data.Generator(PlainTarget(), [{url!r}], {{"temperature": 0.0}}, 40, {str(tmp_path / "j")!r})
            out = step.map(prompts(30))
            records = eagle3_data.records(out)
            print(len(records), set(out["error"]))
            """,
            "report = eagle3_data.measure_lengths(records)\nreport",
            'report.plot("B1")',
            "step.close()",
        ]
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(textwrap.dedent(text)) for text in cells])
        nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    first, table, figure, last = (cell.outputs for cell in notebook.cells)
    assert any(output.get("text", "").startswith("30 {''}") for output in first), first
    assert any("<table>" in output.get("data", {}).get("text/html", "") for output in table), table
    assert any("image/png" in output.get("data", {}) for output in figure), figure
    assert not last, "nothing is said when the step is closed"
