"""B8: trajectories of software agents, a repository issue and the long dialogue that followed.

Goes in: nebius rows (`trajectory`, role `ai`, the system text in `system_prompt`), nebius' OpenHands rows (OpenAI
messages with calls, and `tools`), SWE-smith rows (`messages` as JSON text, in three splits), or SWE-agent's own .traj
files. Comes out: the agent's prompts, labelled with the
repository. Also a loading script for datasets 3.6.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3_data.sources.base import SourceBuilder
from eagle3_data.sources.chat import tool_schemas, turns
from eagle3_data.sources.columns import Column
from eagle3_data.sources.description import ConfigInfo, SourceConfig, SourceInfo
from eagle3_data.sources.dialogue import Dialogue, Reject

_INSTANCE = re.compile(r"(?P<owner>[^_/]+(?:_[^_/]+)*)__(?P<repo>.+?)(?:-\d+|\.[0-9a-f]{7,40}\..*)?\Z")

INFO = SourceInfo(
    name="B8_sweagent",
    title="SWE-agent trajectories: repository issues solved by an agent",
    license="CC-BY-4.0",
    configs={
        "nebius": ConfigInfo("nebius/SWE-agent-trajectories", None, 80_036, license="CC-BY-4.0"),
        "swe-smith": ConfigInfo(
            "SWE-bench/SWE-smith-trajectories",
            None,
            26_076,
            split="xml",
            splits=("tool", "xml", "ticks"),
            license="MIT",
        ),
        "nebius-openhands": ConfigInfo("nebius/SWE-rebench-openhands-trajectories", None, 67_074, license="CC-BY-4.0"),
        "traj": ConfigInfo(""),
    },
    default_config="nebius",
    quirks=(
        "nebius: role `ai`, the system text in `system_prompt` beside a null text; CRLF and {WINDOW} are kept",
        "nebius-openhands: OpenHands' own calls and tools; repo: reads data sets of the same schema, such as nvidia's "
        "SWE-Zero, which declares no tools",
        "many trajectories share one first prompt and count once",
        "SWE-smith: content may be a list, ids of calls may lack",
        "under `rollout` the user turns of nebius and of SWE-smith's `xml` and `ticks` are what upstream's commands "
        "printed, whatever the target commands",
        "SWE-smith's `tool` split declares no tools: the three of its `xml` split are declared (declare_tools)",
    ),
    options={"declare_tools": "declare SWE-smith's three tools for dialogues with calls (default true)"},
    homepage="https://huggingface.co/datasets/nebius/SWE-agent-trajectories",
    terms="CC-BY-4.0 (nebius, both configs); the SWE-smith config is MIT",
    notes=(
        "Issue texts belong to their repositories, under their licences, listed in nebius/SWE-bench-extra.",
        "Where upstream agent turns are kept in a prompt (`turns: prefix` or `last`), the terms of the models that "
        "wrote them apply as well: Llama 3.1 for nebius, Qwen3-Coder for nebius-openhands, Claude "
        "and GPT-4o for SWE-smith.",
    ),
    contamination="GitHub issues of the same kind as SWE-bench's; nebius names SWE-bench-extra as their origin",
    languages=("en",),
)


def _function(name: str, description: str, parameters: dict[str, Any], required: Sequence[str]) -> dict[str, Any]:
    schema = {"type": "object", "properties": parameters, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


_TEXT = {"type": "string"}
SWE_SMITH_TOOLS = json.dumps(
    [
        _function("bash", "Run a bash command in the terminal.", {"command": _TEXT}, ["command"]),
        _function("submit", "Finish when the task is complete or cannot be taken further.", {}, []),
        _function(
            "str_replace_editor",
            "View, create and edit files; the state lasts between calls.",
            {
                "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert", "undo_edit"]},
                "path": {"type": "string", "description": "absolute path of a file or directory"},
                "file_text": _TEXT,
                "old_str": _TEXT,
                "new_str": _TEXT,
                "insert_line": {"type": "integer"},
                "view_range": {"type": "array", "items": {"type": "integer"}},
            },
            ["command", "path"],
        ),
    ]
)


@dataclass
class SweAgentConfig(SourceConfig):
    """Options of B8."""

    declare_tools: bool = True


class B8SweAgent(SourceBuilder):
    """Prompts of software agents."""

    INFO = INFO
    BUILDER_CONFIG_CLASS = SweAgentConfig
    BUILDER_CONFIGS = [SweAgentConfig(name=name) for name in INFO.configs]  # noqa: RUF012
    DEFAULT_CONFIG_NAME = "nebius"

    @classmethod
    def columns(cls, config: Any) -> Sequence[Column]:
        """What each form has."""
        instance = Column("instance_id", nullable=True)
        if config.name == "nebius":
            return (Column("trajectory", "list"), instance)
        if config.name == "swe-smith":
            return (Column("messages", "list"), instance)
        if config.name == "nebius-openhands":
            optional = (Column(name, "text", False) for name in ("tools", "repo", "license"))
            return (Column("trajectory", "list"), instance, *optional)
        return (
            Column("history", "list"),
            Column("problem_statement", "object", False),
            Column("replay_config", "object", False),
        )

    @classmethod
    def read(cls, row: dict[str, Any], config: Any) -> Dialogue:
        """Understand one upstream row."""
        if config.name == "nebius":
            return Dialogue(
                turns(_nebius(row["trajectory"])),
                origin=_repository(row.get("instance_id")),
                license="CC-BY-4.0",
            )
        if config.name == "traj":
            return Dialogue(turns(row["history"]), origin=_repository(_traj_instance(row)))
        if config.name == "nebius-openhands":
            return Dialogue(
                turns(row["trajectory"]),
                tools=tool_schemas(row.get("tools")),
                origin=_text(row.get("repo")) or _repository(row.get("instance_id")),
                license=_text(row.get("license")) or "CC-BY-4.0",
            )
        messages = row["messages"]
        calls = any(isinstance(turn, Mapping) and turn.get("tool_calls") for turn in messages)
        return Dialogue(
            turns(messages),
            tools=SWE_SMITH_TOOLS if calls and config.declare_tools else "[]",
            origin=_repository(row.get("instance_id")),
            license="MIT",
        )


def _nebius(trajectory: Sequence[Any]) -> Iterator[Any]:
    for turn in trajectory:
        if isinstance(turn, dict) and "text" not in turn:
            found = ", ".join(sorted(map(str, turn)))
            hint = "; config nebius-openhands reads `content`" if "content" in turn else ""
            raise Reject("wrong_type", f"a turn holds {found}; expected role, text and system_prompt{hint}")
        if isinstance(turn, dict) and turn.get("role") == "system" and turn.get("text") is None:
            text = turn.get("system_prompt")
            if text is None or text == "":  # what the agent was told is unknown, so this is not what it was asked
                raise Reject("empty_turn", "system: neither text nor system_prompt")
            turn = {"role": "system", "content": text}
        yield turn


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _traj_instance(row: dict[str, Any]) -> Any:
    replay = row.get("replay_config")
    if isinstance(replay, str):
        try:
            replay = json.loads(replay)
        except (ValueError, RecursionError):
            replay = None
    problem = replay.get("problem_statement") if isinstance(replay, Mapping) else None
    return problem.get("id") if isinstance(problem, Mapping) else None


def _repository(instance: Any) -> str:
    """Return `owner/name` of an instance such as `AnalogJ__lexicon-336`."""
    match = _INSTANCE.match(instance) if isinstance(instance, str) else None
    return f"{match['owner']}/{match['repo']}" if match else ""
