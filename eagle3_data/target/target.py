"""`Target`: the model that the drafter serves, as the rest of the package asks it.

Goes in: a tokenizer (local folder, Hub id or GGUF file), the thinking switch, fields that a recipe gives. Comes out:
prompt ids, the parts of an output, a token profile, and an identity by which two targets differ.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from eagle3_data.errors import DataError, TargetError
from eagle3_data.target.call_reading import CallReader
from eagle3_data.target.canaries import check_against_file, check_canaries, server_canaries, vocabulary_canaries
from eagle3_data.target.chats import tool_parameters
from eagle3_data.target.encoding import Codec, Ids
from eagle3_data.target.gguf import load_gguf
from eagle3_data.target.harmony import HarmonySplitter
from eagle3_data.target.left_out import LeftOut
from eagle3_data.target.loading import (
    embedding_rows,
    end_ids,
    load_tokenizer,
    make_codec,
    model_files,
    resolved_revision,
    tokenizer_file,
)
from eagle3_data.target.messages import AssistantMessage, to_message
from eagle3_data.target.probing import THINKING_SWITCHES, Prober, thinking_markers
from eagle3_data.target.profile import TokenProfile, checked_fields
from eagle3_data.target.profile_reading import Vocabulary, build_profile, given_format
from eagle3_data.target.rendering import Forge, Renderer
from eagle3_data.target.segments import Segments, Splitter
from eagle3_data.target.template import ChatTemplate

Messages = Sequence[Mapping[str, Any]]


class Target:
    """A target model's tokenizer, template and token profile. Make one with `from_pretrained` or `from_gguf`.

    Threads and asyncio tasks may share one: no call changes what another returns. Pickling keeps where it
    came from, not the vocabulary, and checks on loading that the tokenizer is still the same.

    Attributes:
        tokenizer: the transformers tokenizer.
        profile: the token profile, under this target's thinking switch.
        forge: `escape`, or `naive` where control strings in messages are left to become control tokens.
    """

    tokenizer: Any
    profile: TokenProfile
    forge: Forge

    def __init__(
        self,
        tokenizer: Any,
        *,
        model: str,
        revision: str | None = None,
        thinking: bool | None = None,
        profile: Mapping[str, Any] | None = None,
        forge: Forge = "escape",
        files: Mapping[str, dict[str, Any]] | None = None,
        origin: Mapping[str, Any] | None = None,
        tokenizer_json: Path | None = None,
    ) -> None:
        if forge not in ("escape", "naive"):
            raise TargetError(f"forge: {forge!r} is neither 'escape' nor 'naive'")
        self.tokenizer = tokenizer
        self.forge = forge
        self.model = model
        self.revision = revision
        self._origin = dict(origin or {})
        self._given = checked_fields(profile or {})
        self._requested = thinking
        self._codec: Codec = make_codec(tokenizer)
        try:
            family = check_canaries(
                tokenizer, self._codec, ChatTemplate(tokenizer).sources(), dict(files or {}), self._given.get("family")
            )
            if tokenizer_json is not None:
                check_against_file(tokenizer, self._codec, tokenizer_json)
            template, self.thinking = self._switched(thinking)
            prober = Prober(template, self._codec.controls)
            self.profile = self._read_profile(prober, template, dict(files or {}), family)
            rules = prober.rules()
        except (TargetError, DataError) as error:
            raise TargetError(f"{model}: {error}") from error
        self._template = template
        self._renderer = Renderer(template, self._codec, rules, forge)
        self._splitter = self._make_splitter(prober)
        self._joints = prober.joints()
        drops = rules.drops | ({"tools"} if self.profile.tools_format == "none" else frozenset())
        self._left_out = LeftOut(model, drops)
        self._identity: dict[str, Any] | None = None

    # ---- making one

    @classmethod
    def from_pretrained(
        cls,
        path_or_id: str | Path,
        revision: str | None = None,
        *,
        trust_remote_code: bool = False,
        thinking: bool | None = None,
        profile: Mapping[str, Any] | None = None,
        forge: Forge = "escape",
    ) -> Self:
        """Load a target from a local folder or the Hub.

        Args:
            path_or_id: a folder with the tokenizer's files (config.json and generation_config.json are read where they
                are there), or a Hub id.
            revision: commit, tag or branch on the Hub.
            trust_remote_code: whether code of the model repository may run (Kimi's tokenizer class).
            thinking: True or False turns thinking on or off by the template's own switch; None takes its default.
            profile: fields of TokenProfile that cannot be read off the template, or that should win over it.
            forge: `escape` encodes control strings inside messages as ordinary text; `naive` lets them become control
                tokens, as `apply_chat_template` does.

        Raises:
            TargetError: no tokenizer there, one that transformers loads wrong, or a template that cannot be understood
                without fields of `profile`.
        """
        name = str(path_or_id)
        tokenizer = load_tokenizer(name, revision, trust_remote_code)
        origin = {"kind": "pretrained", "path": name, "revision": revision, "trust_remote_code": trust_remote_code}
        # Where a folder lies on this machine is no part of what the model is, and nothing for a card.
        label = Path(name).resolve().name if Path(name).is_dir() else name
        return cls(
            tokenizer,
            model=label,
            revision=resolved_revision(name, revision),
            thinking=thinking,
            profile=profile,
            forge=forge,
            files=model_files(name, revision),
            origin=origin,
            tokenizer_json=tokenizer_file(name, revision),
        )

    @classmethod
    def from_gguf(
        cls,
        path: str | Path,
        *,
        thinking: bool | None = None,
        profile: Mapping[str, Any] | None = None,
        forge: Forge = "escape",
    ) -> Self:
        """Build a target from a GGUF file's own vocabulary, merges, pre-tokenizer and chat template.

        Raises:
            TargetError: the file is unreadable, or its tokenizer is of a kind that cannot be built.
        """
        path = Path(path)
        return cls(
            load_gguf(path),
            model=path.stem,
            thinking=thinking,
            profile=profile,
            forge=forge,
            origin={"kind": "gguf", "path": str(path)},
        )

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._origin:
            return super().__reduce_ex__(2)  # type: ignore[return-value]
        options = {"thinking": self._requested, "profile": self._given, "forge": self.forge}
        return _reload, (dict(self._origin), options, self.identity())

    def __repr__(self) -> str:
        return f"Target({self.model!r}, revision={self.revision!r}, thinking={self.thinking!r})"

    def _switched(self, thinking: bool | None) -> tuple[ChatTemplate, bool | None]:
        """Return the template with its switch set, and whether it thinks (None: the model decides, or never)."""
        template = ChatTemplate(self.tokenizer)
        prober = Prober(template, self._codec.controls)
        switch = self._given.get("thinking_switch", prober.switch())
        if thinking is not None and switch is not None:
            template = template.with_variables({switch: thinking})
            return template, thinking
        begin, end = thinking_markers(prober, self._given)
        state = self._given.get("thinking_state") or prober.state(prober.before_answer(), begin, end)
        if switch is not None:
            return template, state != "closed"
        now = {"open": True, "closed": False}.get(state)
        if thinking is not None and thinking != now and not (state == "none" and not thinking):
            raise TargetError(
                f"thinking: {str(thinking).lower()} cannot be had: the chat template has no switch for it (looked for "
                f"{' and '.join(THINKING_SWITCHES)}) and leaves thinking {state}; leave `thinking` out, or give "
                "target.profile.thinking_switch"
            )
        return template, now

    def _read_profile(
        self, prober: Prober, template: ChatTemplate, files: dict[str, dict[str, Any]], family: str
    ) -> TokenProfile:
        size = max(self._codec.vocabulary.values(), default=-1) + 1
        rows = embedding_rows(files)
        vocabulary = Vocabulary(
            size=size if rows is None else min(size, rows),
            bos=self.tokenizer.bos_token_id,
            family=family,
            controls=self._codec.controls,
            encode=lambda text: self._codec.encode([text])[0].tolist(),
            encode_plain=lambda text: self._codec.encode_plain([text])[0].tolist(),
        )
        tools_format = "typescript" if template.takes_typescript else "json"
        return build_profile(prober, vocabulary, end_ids(files, self.tokenizer), tools_format, self._given)

    def _make_splitter(self, prober: Prober) -> Splitter | HarmonySplitter:
        if self.profile.has_channels:
            return HarmonySplitter(self.profile, self._codec.decode)
        form = given_format(prober, self._given)
        reader = None if form is None else CallReader(form, self._codec.controls)
        opening = prober.call_opening() if self.profile.tool_call_format == "unknown" else ""
        return Splitter(self.profile, self._codec.decode, reader, opening)

    # ---- what it is

    @property
    def vocabulary_size(self) -> int:
        """Ids are below this; a larger one is never sent."""
        return self.profile.vocabulary_size

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Every id that ends an answer."""
        return self.profile.end_of_turn_ids

    def identity(self) -> dict[str, Any]:
        """Return what distinguishes this target from another.

        The tokenizer hash is over every token with its id and over the ids of some texts, so that it is the same from
        whatever files and by whatever class the tokenizer was loaded, and another if any of that differs.

        Returns:
            model, revision (None if unknown), thinking (None: no switch), tokenizer_sha256, chat_template_sha256,
            vocabulary_size.
        """
        if self._identity is None:
            added = [[token.id, token.content, token.special] for token in self._codec.added]
            tokens = sorted((index, token) for token, index in self._codec.vocabulary.items())
            facts = [tokens, added, server_canaries(self._codec)]
            self._identity = {
                "model": self.model,
                "revision": self.revision,
                "thinking": self.thinking,
                "tokenizer_sha256": _sha256(json.dumps(facts)),
                "chat_template_sha256": _sha256("\0".join(self._template.sources())),
                "vocabulary_size": self.vocabulary_size,
            }
        return dict(self._identity)

    def canaries(self) -> list[tuple[str, list[int]]]:
        """Return texts with their ids, to compare with a server's `/tokenize`: control strings live, nothing added."""
        return [*server_canaries(self._codec), *vocabulary_canaries(self._codec, self._template.sources())]

    # ---- prompts

    def render(self, messages: Messages, tools: Any = None) -> list[int]:
        """Render a chat to prompt ids, generation prompt included.

        Args:
            messages: chat messages in OpenAI form, ending on the turn to be answered; nulls count as absent.
            tools: None, a list of OpenAI tool schemas, or such a list as JSON text.

        Returns:
            Ids equal to the tokenizer's own `apply_chat_template` if no text spells a control token. Where one does,
            it is encoded as ordinary text. Calls are made canonical first: null keys dropped, arguments a mapping
            where the template prints JSON itself, Kimi's call ids `functions.<name>:<index>`.

        Raises:
            DataError: the chat is not what it should be, or the template refuses it.
        """
        ids: list[int] = self._renderer.ids([(messages, tools)])[0].tolist()
        self._left_out.note([(messages, tools)])
        return ids

    def render_batch(self, messages: Sequence[Messages], tools: Sequence[Any] | None = None) -> list[Ids]:
        """Render many chats; one int32 array (n,) each, in order.

        Args:
            messages: one chat each.
            tools: one entry each, as `render` takes them; None for no tools at all.

        Raises:
            DataError: as `render`; the text names the chat by its 0-based place.
            ValueError: `messages` and `tools` differ in length.
        """
        pairs = list(zip(messages, [None] * len(messages) if tools is None else tools, strict=True))
        ids = self._renderer.ids(pairs)
        self._left_out.note(pairs)
        return ids

    @property
    def left_out(self) -> dict[str, int]:
        """What the chat template has left out of the chats rendered so far: part -> number of messages (or chats)."""
        return dict(self._left_out.counts)

    def render_text(self, messages: Messages, tools: Any = None) -> str:
        """Return the rendered text of a chat, generation prompt included, before it is encoded."""
        return self._renderer.text(messages, tools)

    def forged(self, messages: Messages, tools: Any = None) -> int:
        """Return how many control strings the texts of a chat spell, which `forge="escape"` keeps from being any."""
        return self._renderer.forged(messages, tools)

    # ---- outputs

    def split(
        self,
        output_ids: Sequence[int] | Ids,
        input_ids: Sequence[int] | Ids | None = None,
        *,
        tools: Any = None,
    ) -> Segments:
        """Split what the model wrote (never prompt + output) into reasoning, answer and tool calls.

        Args:
            output_ids: the output (n,).
            input_ids: the prompt (m,) it answers. Only its end matters, and only for targets whose profile has a
                `tool_turn_state`; None stands for a prompt that ends in the generation prompt.
            tools: the tool schemas of the prompt, as `render` takes them. Where calls do not mark the types of their
                arguments (`<parameter=n>3</parameter>`), the schema says whether `3` is a number; without it, text.
                None stands for tools that are not known, `[]` for none, so that no JSON answer is taken for a call.
        """
        return self._splitter.split(_ids(output_ids), _prompt(input_ids), tool_parameters(tools))

    def message(
        self,
        output_ids: Sequence[int] | Ids,
        input_ids: Sequence[int] | Ids | None = None,
        *,
        tools: Any = None,
        first_call: int = 0,
    ) -> AssistantMessage:
        """Return what the model wrote as a chat message, for the history of its next prompt.

        Nothing is repaired or guessed: a call that is not what the target's call format says gives
        `AssistantMessage.unreadable`, a sentence that says why. White space that the template writes between
        thinking, content and calls is left out, since the template writes it again.

        Args:
            output_ids, input_ids, tools: as `split` takes them.
            first_call: how many calls the chat holds before this message, for ids that count them
                (`functions.<name>:<index>`, Kimi).

        Returns:
            content, reasoning_content, tool_calls (id, name, arguments as JSON text) and unreadable; `to_dict()` gives
            the message in OpenAI form.

        Raises:
            DataError: `tools` is no list of tool schemas.
        """
        parts = self.split(output_ids, input_ids, tools=tools)
        names_in_ids = self._renderer.rules.canonical_call_ids or self.profile.tool_call_format == "kimi_k2"
        message = to_message(parts, self._joints, names_in_ids=names_in_ids, first_call=first_call)
        foreign = np.flatnonzero(np.isin(_ids(output_ids), self.profile.template_only_ids))
        if len(foreign) and not message.unreadable:
            token = self.show(_ids(output_ids)[foreign[:1]])
            return replace(
                message, tool_calls=(), unreadable=f"the answer holds {token}, which only a template writes"
            )
        return message

    def reasoning_tokens(self, output_ids: Sequence[int] | Ids, input_ids: Sequence[int] | Ids | None = None) -> int:
        """Return how many tokens of an output (n,) are thinking, its end token included; arguments as `split`.

        All of them if it never closed; those before the tool token if a tool call ended it; 0 without thinking.
        """
        return self._splitter.reasoning_tokens(_ids(output_ids), _prompt(input_ids))

    def tool_calls(self, output_ids: Sequence[int] | Ids, input_ids: Sequence[int] | Ids | None = None) -> int:
        """Return how many tool calls an output (n,) begins; arguments as `split`.

        0 for targets whose calls are plain text.
        """
        return self._splitter.tool_calls(_ids(output_ids), _prompt(input_ids))

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text of ids, control tokens spelled out."""
        return self._codec.decode(_ids(ids).tolist())

    def show(self, ids: Sequence[int] | Ids) -> str:
        """Return the text of ids for people: control tokens stand in ⟦ ⟧, text that spells one does not."""
        values = _ids(ids)
        shown: list[str] = []
        start = 0
        for place in np.flatnonzero(self._codec.controls.is_in(values)).tolist():
            shown.append(self._codec.decode(values[start:place].tolist()))
            shown.append(f"⟦{self._codec.controls.strings[int(values[place])]}⟧")
            start = place + 1
        shown.append(self._codec.decode(values[start:].tolist()))
        return "".join(shown)

    def describe(self, record: Mapping[str, Any]) -> str:
        """Return a record as text for people: its facts, the prompt and the output with control tokens visible."""
        facts = [
            f"{key}={record[key]}"
            for key in (
                "source",
                "finish_reason",
                "prompt_tokens",
                "completion_tokens",
                "reasoning_tokens",
                "tool_calls",
                "max_new_tokens",
            )
            if key in record
        ]
        head = f"{record.get('sample_id', 'record')}  {'  '.join(facts)}"
        return "\n".join(
            [
                head,
                f"--- prompt ({len(record['input_ids'])} tokens)",
                self.show(record["input_ids"]),
                f"--- output ({len(record['output_ids'])} tokens)",
                self.show(record["output_ids"]),
            ]
        )


def _ids(ids: Sequence[int] | Ids) -> Ids:
    return np.asarray(ids, dtype=np.int32)


def _prompt(ids: Sequence[int] | Ids | None) -> Ids | None:
    return None if ids is None else _ids(ids)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _reload(origin: Mapping[str, Any], options: Mapping[str, Any], identity: Mapping[str, Any]) -> Target:
    """Load a pickled target again, and refuse it if the files have changed since."""
    key = json.dumps([dict(origin), dict(options)], sort_keys=True, default=list)
    if key not in _loaded:
        if origin["kind"] == "gguf":
            _loaded[key] = Target.from_gguf(origin["path"], **options)
        else:
            _loaded[key] = Target.from_pretrained(
                origin["path"], origin["revision"], trust_remote_code=origin["trust_remote_code"], **options
            )
    target = _loaded[key]
    if target.identity() != dict(identity):
        raise TargetError(
            f"{target.model}: the tokenizer or template has changed on disk since this target was loaded"
        )
    return target


# Unpickled targets of this process: map workers unpickle one for every task.
_loaded: dict[str, Target] = {}
