# SPDX-License-Identifier: Apache-2.0
"""The control protocol by hand, to say what no library would say."""
import array
import os
import re
import socket
import struct
import time

MAGIC = 0x4D50564B
(HELLO, WELCOME, ERROR, ATTACHED, SPACE_OPEN, SPACE, SPACE_CLOSE, EXTENT, EXTENT_GET, ARENA_ACK,
 RETIRE, RETIRE_ACK, ADMIN, ADMIN_PART, PROVE, PROOF, BYE) = range(1, 18)
CLIENT, ADMINISTRATOR = 0, 1
HEADER = struct.Struct("=IHHII")
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../shm/kvp_abi.h"),
          encoding="utf-8") as header:
    text = header.read()
    ABI = int(re.search(r"define KVP_ABI_VERSION (\d+)u", text).group(1))
    CANON = int(re.search(r"sizeof\(struct kvp_space_canon\) == (\d+)", text).group(1))


def canon(model):
    """A description of a space: a version and a name are all that the tests' data plane looks at."""
    return struct.pack("=I100x64s", 1, model).ljust(CANON, b"\0")


class Packet:
    def __init__(self, data, fds):
        self.magic, self.type, self.n_fds, self.len, self.tag = HEADER.unpack_from(data)
        self.body = data[HEADER.size:]
        self.fds = fds
        assert self.magic == MAGIC and self.len == len(self.body) and self.n_fds == len(fds)

    @property
    def error(self):
        assert self.type == ERROR, self.type
        return struct.unpack_from("=i", self.body)[0]

    @property
    def text(self):
        return self.body[8:].split(b"\0")[0].decode()

    def close(self):
        for fd in self.fds:
            os.close(fd)


class Raw:
    def __init__(self, path, timeout=60.0):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(timeout)
        while True:
            try:
                self.sock.connect(path)
                return
            except BlockingIOError:  # the listen queue is full
                time.sleep(0.001)

    def fileno(self):
        return self.sock.fileno()

    def send_bytes(self, data, fds=()):
        control = []
        if fds:
            control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        self.sock.sendmsg([data], control)

    def send(self, kind, body=b"", tag=1, n_fds=0, length=None, magic=MAGIC, fds=()):
        self.send_bytes(HEADER.pack(magic, kind, n_fds, len(body) if length is None else length,
                                    tag) + body, fds)

    def receive(self):
        """The next packet, or None when the daemon has closed the connection."""
        try:
            data, control, flags, _ = self.sock.recvmsg(65536, socket.CMSG_SPACE(4 * 16))
        except ConnectionResetError:
            return None
        fds = array.array("i")
        for level, kind, value in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(value)
        assert not flags & socket.MSG_CTRUNC
        return Packet(data, list(fds)) if data else None

    def hello(self, role=CLIENT, low=ABI, high=ABI, name=b"raw"):
        self.send(HELLO, struct.pack("=IIII64s", low, high, role, 0, name))

    def come_and_go(self):
        """HELLO and BYE, and nothing is received."""
        try:
            self.hello()
            self.send(BYE)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused already

    def attach(self):
        """HELLO up to ATTACHED. Returns (session, tenant, epoch) and closes all descriptors."""
        self.hello()
        p = self.receive()
        if p is None or p.type != WELCOME:
            return p
        _, session, tenant, _, epoch = struct.unpack_from("=IIIIQ", p.body)
        assert len(p.fds) == 3
        p.close()
        while p.type != ATTACHED:
            p = self.receive()
            p.close()
        return session, tenant, epoch

    def ask(self, text, tag=7):
        """An administrator's request. Returns (status, answer as bytes)."""
        self.send(ADMIN, text if isinstance(text, bytes) else text.encode(), tag)
        answer = b""
        while True:
            p = self.receive()
            if p is None or p.type == ERROR:
                return (p.error if p else None), None
            assert p.type == ADMIN_PART and p.tag == tag
            last, status = struct.unpack_from("=Ii", p.body)
            answer += p.body[8:]
            if last:
                return status, answer

    def close(self):
        self.sock.close()
