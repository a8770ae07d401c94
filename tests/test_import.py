"""Importing the package: quick, on supported systems only, and the sources known to `datasets` in any order."""

import subprocess
import sys

import pytest


def python(code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)


def test_help_loads_no_library() -> None:
    code = (
        "import sys, contextlib; from eagle3_data import cli\n"
        "with contextlib.suppress(SystemExit): cli.main(['--help'])\n"
        "print(sorted({'datasets', 'numpy', 'pandas', 'pyarrow', 'transformers', 'aiohttp'} & set(sys.modules)))"
    )
    ran = python(code)
    assert ran.returncode == 0 and ran.stdout.rstrip().endswith("[]"), ran.stdout[-200:] + ran.stderr


@pytest.mark.parametrize("imports", ["import datasets, eagle3_data", "import eagle3_data, datasets"])
def test_sources_are_known_to_datasets_in_any_order(imports: str) -> None:
    code = (
        f"import sys; {imports}; from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES as known\n"
        "print('B1_glaive' in known)"
    )
    assert python(code).stdout.strip() == "True"


def test_public_names_are_found_before_datasets_is_imported() -> None:
    code = "import eagle3_data as e; print(callable(e.sources.register), callable(e.load_source), e.Target.__name__)"
    ran = python(code)
    assert ran.stdout.strip() == "True True Target", ran.stderr


def test_python_dash_m() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "eagle3_data", "--version"], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0 and ran.stdout.startswith("eagle3-data ")


def test_another_system_is_told_in_one_sentence() -> None:
    ran = python("import sys; sys.platform = 'win32'; import eagle3_data")
    assert ran.returncode == 1 and "Linux and macOS" in ran.stderr.splitlines()[-1]


@pytest.mark.parametrize("module", ["schema", "sources", "target", "generation", "lengths", "publishing", "pipeline"])
def test_any_module_may_be_imported_first(module: str) -> None:
    ran = python(f"import eagle3_data.{module}")
    assert ran.returncode == 0, ran.stderr
