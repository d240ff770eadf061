"""Starts the demo's processes, listens to them, and starts again whichever dies."""

from __future__ import annotations

import json
import os
import select
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from netreplay.clients.demo.config import Config
from netreplay.clients.demo.process import Command, Process, how_ended
from netreplay.clients.demo.record import ProcessState, Record, Restart
from netreplay.errors import NetreplayError

_START_SECONDS = 30.0  # a server that has not said that it is ready by then never will
_GRACE_SECONDS = 0.8  # for actors and learner to hand over what they have
_SERVER_GRACE_SECONDS = 0.5
_FRUITLESS_STARTS = 3  # in a row, after which a process is given up
_HERE = __package__ or "netreplay.clients.demo"


class ProcessFailedError(NetreplayError, RuntimeError):
    """A process of the demo died again and again before it had done anything."""


class Supervisor:
    """A context manager: inside it the processes run; none of them outlives it, nor this process."""

    def __init__(self, config: Config, folder: Path, record: Record) -> None:
        self.config, self.record = config, record
        self._folder, self._place = folder, folder / "processes"
        self._place.mkdir(parents=True, exist_ok=True)
        self._ready, self._stats = self._place / "server.ready", self._place / "server.stats.json"
        self._toml = folder / "server.toml"
        self._toml.write_text(
            '[server]\nauth = "off"\n\n' + config.tables.read_text(encoding="utf-8"), encoding="utf-8"
        )
        # A folder of its own, as short as a socket's path must be, that only this user can enter.
        self._sockets = Path(tempfile.mkdtemp(prefix="netreplay-"))
        self._listen = f"vhost://{self._sockets}/demo.sock" if config.transport == "vhost" else "udp://127.0.0.1:0"
        self._fruitless: dict[str, int] = {}  # starts in a row that came to nothing
        self._seen_working: dict[str, int] = {}  # pid
        self.server = self._process("server", self._serve_command)
        self.others: list[Process] = []

    # ---- starting ----

    def _process(self, name: str, command: Command) -> Process:
        log = self._place / f"{name.replace(' ', '-')}.log"
        log.unlink(missing_ok=True)
        self.record.processes[name] = ProcessState(name)
        return Process(name, command, log)

    def _serve_command(self, _pipe: int) -> list[str]:
        files = ["--ready-file", str(self._ready), "--stats-file", str(self._stats)]
        serve = ["serve", "-c", str(self._toml), "--listen", self._listen, *files]
        return self._command("netreplay.cli", *serve)

    def _actor_command(self, index: int) -> Command:
        return lambda pipe: self._client_command("actor", pipe, str(index))

    def _client_command(self, module: str, pipe: int, *more: str) -> list[str]:
        return self._command(f"{_HERE}.{module}", str(pipe), self.config.to_json(), *more)

    @staticmethod
    def _command(module: str, *arguments: str) -> list[str]:
        return ["-m", f"{_HERE}.start", str(os.getpid()), module, *arguments]

    def _start(self, process: Process) -> int:
        if process is self.server:
            self._ready.unlink(missing_ok=True)
            self._stats.unlink(missing_ok=True)
        pid = process.start()
        state = self.record.processes[process.name]
        state.pid, state.since, state.working = pid, self.record.now, False
        return pid

    def __enter__(self) -> Supervisor:
        try:
            self._start(self.server)
            self._wait_for_server()
            self.others = [self._process("learner", lambda pipe: self._client_command("learner", pipe))]
            for index in range(self.config.actors):
                self.others.append(self._process(f"actor {index}", self._actor_command(index)))
            for process in self.others:
                self._start(process)
        except BaseException:
            self.close()
            raise
        return self

    def _wait_for_server(self) -> None:
        """The first one's address, a free port perhaps, those after it take again."""
        end = time.monotonic() + _START_SECONDS
        while not self._ready.exists():
            if self.server.code is not None:
                raise ProcessFailedError(f"demo: the server {how_ended(self.server.code)}: {self.server.last_words()}")
            if time.monotonic() > end:
                raise ProcessFailedError(f"demo: the server was not ready after {_START_SECONDS:.0f} s")
            time.sleep(0.01)
        self._listen = url = self._ready.read_text(encoding="utf-8").strip()
        self.config = self.record.config = replace(self.config, url=url)
        self.record.say(f"the server listens on {url}")

    # ---- watching ----

    @property
    def processes(self) -> list[Process]:
        return [self.server, *self.others]

    def watch(self, seconds: float) -> None:
        """For at most so long, until something is told: takes it in, and starts again whatever has died."""
        pipes = [process.pipe for process in self.others if process.pipe is not None]
        select.select(pipes, [], [], seconds)
        self._listen_to_all()
        for process in self.processes:
            code = process.code
            if code is not None:
                self._replace(process, code)
        self._note_working()

    def _listen_to_all(self) -> None:
        for process in self.others:
            for message in process.messages():
                self.record.take(process.name, message)
        self._read_stats()
        if not self.record.processes["server"].working and self._ready.exists():
            self.record.processes["server"].working = True

    def _read_stats(self) -> None:
        """What the server last wrote about itself."""
        try:
            stats = json.loads(self._stats.read_text(encoding="ascii"))
        except (FileNotFoundError, json.JSONDecodeError):
            return
        if stats != self.record.server.present:
            self.record.take_stats(stats)

    def _replace(self, process: Process, code: int) -> None:
        record, state = self.record, self.record.processes[process.name]
        how, words = how_ended(code), process.last_words()
        if process is self.server:
            record.server.retire()
        fruitless = 0 if state.working else self._fruitless.get(process.name, 0) + 1
        self._fruitless[process.name] = fruitless
        if fruitless >= _FRUITLESS_STARTS:
            raise ProcessFailedError(
                f"demo: the {process.name} died {fruitless} times before it did anything; at last it {how}: {words}"
            )
        restart = Restart(process.name, state.pid, record.now, record.steps, code, how, words)
        restart.new_pid = self._start(process)
        record.restarts.append(restart)
        state.restarts += 1
        said = f" ({words})" if code > 0 and words else ""
        record.say(f"{process.name} (pid {restart.pid}) {how}{said}: started again as pid {restart.new_pid}")

    def _note_working(self) -> None:
        """Says who has begun to work, and what that means for its predecessor's end."""
        for name, state in self.record.processes.items():
            if not state.working or self._seen_working.get(name) == state.pid:
                continue
            self._seen_working[name] = state.pid
            after = f"{self.record.now - state.since:.1f} s"
            for restart in self.record.restarts:
                if restart.new_pid == state.pid:
                    restart.recovered_seconds = self.record.now - restart.seconds
                    after = f"{restart.recovered_seconds:.1f} s: it has recovered"
            self.record.say(f"{name} (pid {state.pid}) works after {after}")

    # ---- ending ----

    def close(self) -> None:
        """Ends every process: the clients first, the server when it has counted what they did."""
        for process in self.others:
            process.terminate()
        end = time.monotonic() + _GRACE_SECONDS
        while time.monotonic() < end and any(process.code is None for process in self.others):
            self._listen_to_all()
            time.sleep(0.01)
        self._listen_to_all()
        for process in self.others:
            process.close()
        self.server.terminate()
        self.server.wait(_SERVER_GRACE_SECONDS)
        shutil.rmtree(self._sockets, ignore_errors=True)
        self._read_stats()
        self.server.close()

    def __exit__(self, *_: object) -> None:
        self.close()
