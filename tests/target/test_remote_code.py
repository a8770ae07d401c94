"""A tokenizer that is code of the model repository over a tiktoken vocabulary, as Kimi-K2.5 is published."""

import base64
import json
import shutil
from pathlib import Path

import pytest
from support.chats import Chats
from support.shared import SHARED

from eagle3_data.errors import TargetError
from eagle3_data.target import Target
from eagle3_data.target.encoding import FastCodec

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared folder with real tokenizers is not here")

CODE = """
import json
from pathlib import Path

import tiktoken
from tiktoken.load import load_tiktoken_bpe
from transformers import PreTrainedTokenizer


class RemoteTokenizer(PreTrainedTokenizer):
    vocab_files_names = {"vocab_file": "tiktoken.model"}
    model_input_names = ["input_ids", "attention_mask"]
    pat_str = json.loads((Path(PLACE) / "pattern.json").read_text())

    def __init__(self, vocab_file, added_tokens_decoder=None, **kwargs):
        self.vocab_file = vocab_file
        ranks = load_tiktoken_bpe(vocab_file)
        names = {int(index): str(token) for index, token in (added_tokens_decoder or {}).items()}
        special = {names.get(i, f"<|reserved_token_{i}|>"): i for i in range(len(ranks), len(ranks) + 256)}
        self.model = tiktoken.Encoding("kimi", pat_str=self.pat_str, mergeable_ranks=ranks, special_tokens=special)
        letters = json.loads((Path(PLACE) / "letters.json").read_text())
        self.encoder = {"".join(letters[b] for b in token): rank for token, rank in ranks.items()} | special
        self.decoder = {rank: token for token, rank in self.encoder.items()}
        super().__init__(added_tokens_decoder=added_tokens_decoder, **kwargs)

    @property
    def vocab_size(self):
        return self.model.n_vocab

    def get_vocab(self):
        return self.encoder

    def encode(self, text, **kwargs):
        return self.model.encode(text, allowed_special="all")

    def _tokenize(self, text, **kwargs):
        return [self.decoder[i] for i in self.encode(text)]

    def _convert_token_to_id(self, token):
        return self.encoder[token]

    def _convert_id_to_token(self, index):
        return self.decoder[index]

    def apply_chat_template(self, conversation, tools=None, tokenize=False, add_generation_prompt=True, **kwargs):
        return super().apply_chat_template(
            conversation, tools=tools, tokenize=tokenize, add_generation_prompt=add_generation_prompt, **kwargs
        )
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = SHARED / "tokenizers" / "kimi-k2.5"
    description = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    bytes_of = {letter: byte for byte, letter in letters.items()}
    ranks = sorted((rank, token) for token, rank in description["model"]["vocab"].items())
    with (tmp_path / "tiktoken.model").open("wb") as file:
        for rank, token in ranks:
            file.write(base64.b64encode(bytes(bytes_of[letter] for letter in token)) + f" {rank}\n".encode())
    (tmp_path / "letters.json").write_text(json.dumps([letters[byte] for byte in range(256)]))
    pattern = description["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    (tmp_path / "pattern.json").write_text(json.dumps(pattern))
    (tmp_path / "tokenization_remote.py").write_text(f"PLACE = {str(tmp_path)!r}\n{CODE}")
    config = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    config |= {
        "tokenizer_class": "RemoteTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_remote.RemoteTokenizer", None]},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    shutil.copyfile(source / "chat_template.jinja", tmp_path / "chat_template.jinja")
    return tmp_path


def test_remote_code_gives_the_ids_of_the_fast_class(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TargetError):
        Target.from_pretrained(folder)
    remote = Target.from_pretrained(folder, trust_remote_code=True)
    fast = Target.from_pretrained(SHARED / "tokenizers" / "kimi-k2.5")
    assert remote.profile == fast.profile
    chats = Chats(5, ("<|im_end|>", "</think>"))
    drawn = [chats.chat() for _ in range(60)]
    messages, tools = [chat for chat, _ in drawn], [given for _, given in drawn]
    wanted = [ids.tolist() for ids in fast.render_batch(messages, tools)]
    assert [ids.tolist() for ids in remote.render_batch(messages, tools)] == wanted
    monkeypatch.setattr(FastCodec, "WORTH_IT", 0)
    assert [ids.tolist() for ids in remote.render_batch(messages, tools)] == wanted
    assert remote.decode(wanted[0]) == fast.decode(wanted[0])
    # The class cuts runs longer than 25,000 characters before it encodes them.
    long = [{"role": "user", "content": "ab" * 20_000}]
    text, encode = remote.render_text(long), remote.tokenizer.encode
    assert remote.render(long) == encode(text[:25_000]) + encode(text[25_000:])
    assert remote.render(long) == remote.render_batch([long])[0].tolist()
