"""Our own turns: a program that measures when it is asked to."""
import contextlib
import json
import os
import pathlib
import queue
import subprocess
import threading

# A launcher's variables would make the program wait for processes that are ours.
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK",
            "ROLE_RANK")


class TurnError(RuntimeError):
    """The program measured nothing; says why."""


class Turns:
    """`cpscope bench FILE... --turns`, one file after another in the order of their names (`files`).

    A program that ends before its time is started again with the next file.
    """

    def __init__(self, program, files, executor, repeats, log, seconds=180):
        self.command = [str(program), "bench", "--executor", executor, "--repeats", str(repeats), "--turns"]
        self.files = sorted({str(file) for file in files})
        self.seconds = seconds  # that one answer may take
        self.log = pathlib.Path(log)
        self.log.write_text("")
        self.at = 0
        self.process = None
        self.is_ready = False

    def start(self):
        environment = {name: value for name, value in os.environ.items()
                       if name not in LAUNCHER and not name.startswith("TORCHELASTIC_")}
        with self.log.open("a") as log:
            self.process = subprocess.Popen(self.command + self.files[self.at:], stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        self.lines = queue.Queue()
        self.is_ready = False
        threading.Thread(target=self._read, args=(self.process, self.lines), daemon=True).start()

    @staticmethod
    def _read(process, lines):
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    def _answer(self):
        try:
            line = self.lines.get(timeout=self.seconds)
        except queue.Empty:
            self.stop()
            raise TurnError(f"no answer in {self.seconds} s") from None
        if line is None:
            code = self.process.wait()
            self.process = None
            said = self.log.read_text().strip().splitlines()
            raise TurnError(f"the program ended with code {code}: {said[-1] if said else 'it said nothing'}")
        answer = json.loads(line)
        if "error" in answer:
            raise TurnError(answer["error"])
        return answer

    def ready(self):
        """Waits until the inputs of the current file are made."""
        if self.process is None:
            self.start()
        if not self.is_ready:
            self.is_ready = True  # an error is told once
            self._answer()

    def turn(self, file):
        """A row of `cpscope bench --json`, which must be of this file."""
        self.ready()
        with contextlib.suppress(BrokenPipeError):  # the answer tells how the program ended
            self.process.stdin.write("turn\n")
            self.process.stdin.flush()
        row = self._answer()
        if row["file"] != str(file):
            raise TurnError(f"the program speaks of {row['file']}, not of {file}")
        return row

    def next(self):
        """Goes on to the next file, whose inputs are made from now on."""
        self.at += 1
        if self.process is None:
            return
        if not self.is_ready:
            self.stop()
            return
        self.is_ready = False
        try:
            self.process.stdin.write("next\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.stop()

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
