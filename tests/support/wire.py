"""A socket in front of a server that keeps what was sent to it: what really went over the wire, byte for byte."""

import json
import re
import socket
import threading
from typing import Any


class Wire:
    """A socket in front of a server (or of nothing) that keeps every byte sent to it."""

    def __init__(self, port: int | None = None) -> None:
        self.port, self.received = port, bytearray()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client = self._listener.accept()[0]
            onward = socket.create_connection(("127.0.0.1", self.port)) if self.port else None
            threading.Thread(target=self._pass, args=(client, onward, True), daemon=True).start()
            if onward:
                threading.Thread(target=self._pass, args=(onward, client, False), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket | None, keep: bool) -> None:
        try:
            while piece := source.recv(65536):
                if keep:
                    self.received += piece
                if sink:
                    sink.sendall(piece)
        except OSError:
            pass
        finally:
            if sink:
                sink.close()

    def bodies(self) -> list[dict[str, Any]]:
        """Return the `/generate` requests that were sent."""
        found = re.findall(rb'\{"input_ids":\[[\d,]+\],"sampling_params":\{.*?\}\}', bytes(self.received))
        return [json.loads(body) for body in found]
