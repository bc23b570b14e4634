# SPDX-License-Identifier: Apache-2.0
"""A kvpoold that only an administrator can talk to, and whose answers a test chooses: what kvctl
makes of figures that a real daemon would have to be brought to, and of names that no config allows."""
import json
import os
import socket
import struct
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "daemon", "control"))
from rawclient import ADMIN, ADMIN_PART, HEADER, HELLO, MAGIC, WELCOME  # noqa: E402


class FakeAdmin:
    """answers: verb -> what to answer, or a function that makes it from the request; an answer with
    "error" has the status -EINVAL. `asked` is every request in order."""

    def __init__(self, answers):
        self.answers = answers
        self.asked = []
        self.dir = tempfile.TemporaryDirectory(prefix="kvpool-fake-")
        self.socket = os.path.join(self.dir.name, "kvpool.sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.socket)
        self.listener.listen(8)
        self.server = threading.Thread(target=self._serve, daemon=True)
        self.server.start()

    def _serve(self):
        while True:
            try:
                peer = self.listener.accept()[0]
            except OSError:
                return
            with peer:
                self._talk(peer)

    def _talk(self, peer):
        while data := peer.recv(1 << 16):
            _, kind, _, _, tag = HEADER.unpack_from(data)
            if kind == HELLO:
                body = struct.pack("=IIIIQQQ", 1, 0, 0, 0, 1, 0, 0)
                peer.send(HEADER.pack(MAGIC, WELCOME, 0, len(body), tag) + body)
            elif kind == ADMIN:
                self._answer(peer, json.loads(data[HEADER.size:]), tag)

    def _answer(self, peer, request, tag):
        self.asked.append(request)
        answer = self.answers.get(request["verb"], {"error": "there is no such verb"})
        if callable(answer):
            answer = answer(request)
        text = json.dumps(answer).encode()
        for at in range(0, len(text), 4096):
            part = text[at:at + 4096]
            last = at + len(part) == len(text)
            body = struct.pack("=Ii", last, -22 if last and "error" in answer else 0) + part
            peer.send(HEADER.pack(MAGIC, ADMIN_PART, 0, len(body), tag) + body)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # A thread that is about to accept would take the next one's clients, whose listener has the same number.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.server.join(10)
        self.listener.close()
        self.dir.cleanup()
