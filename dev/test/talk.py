#!/usr/bin/env python3
"""Generated text, of the CPU trainer and of the GPU trainer in the simulator: whole characters, --stop, --samples.
Conversations, of talk: editing, history, Ctrl-C, Ctrl-D; lines that come from no terminal."""
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
CPU, SIM = ["./train_gpt2_cpu", "--threads", "1"], ["build/BF16/train_gpt2sim"]
TALK = ["./talk", "--threads", "1"]
BYTES, NAMED = "bytes_tokenizer.bin", "named_tokenizer.bin"
MODEL = ["-e", "L1C32H2T64V257"]
SHAPE = [*MODEL, "-x", "0"]


def write_tokenizer(path, tokens):
    """A tokenizer file of these tokens and <|endoftext|>."""
    tokens = [*tokens, b"<|endoftext|>"]
    header = struct.pack("<256I", 20240328, 2, len(tokens), len(tokens) - 1, *[0] * 252)
    path.write_bytes(header + b"".join(bytes([len(token)]) + token for token in tokens))


class Tests:
    def __init__(self, folder):
        self.folder, self.counts = folder, [0, 0]
        write_tokenizer(folder / BYTES, [bytes([byte]) for byte in range(256)])
        (folder / "inputrc").write_text("set enable-bracketed-paste off\n")  # it writes codes between the lines
        # The same tokens under another name: with the same seed, a sample shows which tokens the text has.
        write_tokenizer(folder / NAMED, [b"<%02x>" % byte for byte in range(256)])

    def run(self, program, *flags, tokenizer=BYTES):
        command = [*program, *SHAPE, "--tokenizer", self.folder / tokenizer, *flags]
        return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=300)

    def sample(self, program, *flags, tokenizer=BYTES):
        """What is generated without a prompt."""
        result = self.run(program, "-v", "0", "-s", "1", "--quiet", "1", *flags, tokenizer=tokenizer)
        assert result.returncode == 0, result.stderr
        return re.fullmatch(rb"generating:\n---\n(.*)\n---\n", result.stdout, re.DOTALL)[1]

    def raw_sample(self, program, *flags):
        """The bytes of its tokens."""
        return bytes(int(name, 16) for name in re.findall(rb"<(\w\w)>", self.sample(program, *flags, tokenizer=NAMED)))

    def test(self, name, check, *arguments):
        try:
            check(*arguments)
            self.counts[0] += 1
        except (AssertionError, subprocess.TimeoutExpired) as error:
            self.counts[1] += 1
            print(f"FAILED {name}: {error!r}"[:2000])


class Conversation:
    """talk, or another program, on a terminal of its own, and what it has written there."""

    def __init__(self, tests, *flags, program=TALK, shape=MODEL, term="xterm", tokenizer=BYTES):
        terminal, child_side = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
        self.fd, self.child_side, self.written, self.seen = terminal, child_side, b"", 0
        self.modes = termios.tcgetattr(child_side)
        environment = {k: v for k, v in os.environ.items() if k != "LANG" and not k.startswith("LC_")}
        environment.update(TERM=term, INPUTRC=str(tests.folder / "inputrc"))
        command = [*program, *shape, "--tokenizer", tests.folder / tokenizer, *flags]
        take_terminal = lambda: (os.setsid(), fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.child = subprocess.Popen(command, cwd=ROOT, stdin=child_side, stdout=child_side, stderr=child_side,
                                      env=environment, preexec_fn=take_terminal)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()
        os.close(self.fd)
        os.close(self.child_side)

    def read(self, seconds):
        if select.select([self.fd], [], [], seconds)[0]:
            self.written += os.read(self.fd, 65536)

    def expect(self, text, seconds=20):
        """Waits until the program has written this, after what was waited for before."""
        until = time.monotonic() + seconds
        while text not in self.written[self.seen:]:
            assert time.monotonic() < until, f"{text} is missing in {self.written[self.seen:]}"
            self.read(0.1)
        self.seen = self.written.index(text, self.seen) + len(text)

    def type(self, text):
        self.expect(b"> ")
        os.write(self.fd, text.encode())

    def finish(self):
        """The exit status. The terminal must be left as it was."""
        until = time.monotonic() + 20
        while self.child.poll() is None:
            assert time.monotonic() < until, f"it does not end: {self.written}"
            self.read(0.05)
        self.read(0)
        assert termios.tcgetattr(self.child_side) == self.modes, "the terminal has other modes than before"
        return self.child.returncode


def shown(raw):
    return raw.decode(errors="replace").replace("\0", "\ufffd").encode()


def whole_characters(tests, program, samples):
    invalid = 0
    for seed in range(samples):
        flags = ["-g", "1000" if program is CPU else "60", "--seed", str(seed)]
        raw = tests.raw_sample(program, *flags)
        invalid += raw.decode(errors="replace").count("\ufffd")
        assert tests.sample(program, *flags) == shown(raw), raw
    assert invalid > 10 * samples


def stop_text(tests, program):
    raw = tests.raw_sample(program, "-g", "60")
    for at, length in ((20, 1), (20, 2), (21, 3), (22, 5)):
        text = raw[at:at + length]
        assert b"\0" not in text, "another seed is needed"
        expected = shown(raw[:raw.find(text)])
        assert tests.sample(program, "-g", "60", "--stop", text) == expected, (text, expected)
    begun = raw[-2:] + b"x"  # a text that has begun when the sample ends is shown
    assert tests.sample(program, "-g", "60", "--stop", begun) == shown(raw)


def end_of_text(tests, program):
    """The sample ends at <|endoftext|>, which is not shown: the tokens up to it are those of a shorter sample."""
    for seed in range(40):
        raw = tests.raw_sample(program, "-g", "60", "--seed", str(seed))
        if len(raw) < 60:
            break
    assert len(raw) < 60, "no sample ends early"
    assert tests.raw_sample(program, "-g", str(len(raw)), "--seed", str(seed)) == raw


def several_samples(tests, program):
    draw = lambda count: tests.run(program, "--prompt", "To be", "-g", "12", "--quiet", "1", "--samples", count).stdout
    one, two, three = draw("1"), draw("2").split(b"\0"), draw("3").split(b"\0")
    assert two[2:] == three[3:] == [b""] and three[:2] == two[:2] and two[0] + b"\n" == one
    assert all(text.startswith(b"To be") for text in three[:3]) and len(set(three)) == 4
    lines = tests.run(program, "--prompt", "To be", "-g", "12", "--samples", "3")
    assert lines.stdout.endswith(b"\n---\n".join(three[:3]) + b"\n")
    speed = rb"warning: -e \S+ describes a model whose weights are random: .*\n"
    speed += rb"prompt: 5 tokens, [\d.]+ tok/s \| generated: 3\d tokens, [\d.]+ tok/s\n"
    assert re.fullmatch(speed, lines.stderr), lines


def long_prompt(tests, program):
    """A prompt that is longer than the context, and text that becomes so."""
    for size in (63, 64, 65, 200):
        result = tests.run(program, "--prompt", "x" * size, "-g", "70", "--quiet", "1", "--samples", "2")
        first, second, rest = result.stdout.split(b"\0")
        assert result.returncode == 0 and first.startswith(b"x" * size) and second.startswith(b"x" * size) and not rest
        assert (b"the model's context is 64: it continues the last 64" in result.stderr) == (size > 64), result.stderr
        again = tests.run(program, "--prompt", "x" * size, "-g", "70", "--quiet", "1").stdout
        assert again == first + b"\n", (size, first, again)


def prompt_of_bytes(tests, program):
    """A prompt that is no UTF-8 is shown as Python decodes it; what the model reads of it are its bytes."""
    for prompt in b"caf\xe9 cr\xe8me", b"\xff\xc3\xa9\xe2\x82", b"\xed\xa0\x80x":
        result = tests.run(program, "--prompt", prompt, "-g", "5", "--quiet", "1", "--temperature", "0")
        assert result.returncode == 0 and result.stdout.decode().startswith(prompt.decode(errors="replace")), result


def on_terminal(text):
    """What a terminal gets of a text: no control characters; the lines end as terminals want it."""
    return re.sub("[^\t\n\r -~\xa0-\U0010ffff]", "\ufffd", text.decode()).replace("\n", "\r\n").encode()


KEYS = {"typed": "To be\r", "Backspace": "To bX\x7fe\r", "Backspace over a character of two bytes": "To bé\x7fe\r",
        "Ctrl-A": "o be\x01T\r", "Left": "To e\x1b[Db\r"}


def first_line(tests, keys, term="xterm"):
    """The first prompt has the text that --prompt gives."""
    text = tests.run(CPU, "--prompt", "To be", "-g", "30", "--quiet", "1").stdout
    with Conversation(tests, "-g", "30", term=term) as talk:
        talk.expect(b"each line is a prompt")
        talk.type(keys)
        talk.expect(b"\n" + on_terminal(text))
        talk.expect(b"prompt: 5 tokens, ")
        talk.type("\x04")
        assert talk.finish() == 0


def history(tests):
    with Conversation(tests, "-g", "5", "--temperature", "0", "--quiet", "1") as talk:
        for keys, text in (("first\r", b"first"), ("second\r", b"second"), ("\x1b[A\r", b"second"),
                           ("\x1b[A\x1b[A\r", b"first")):
            talk.type(keys)
            talk.expect(b"\n" + on_terminal(tests.run(CPU, "-g", "5", "--temperature", "0", "--quiet", "1", "--prompt",
                                                      text).stdout))
        talk.type("\x04")
        assert talk.finish() == 0 and b"tok/s" not in talk.written and b"each line" not in talk.written


ENDLESS = ["-g", "1000000", "--temperature", "0"]  # a model with these random weights repeats one letter


def interrupts(tests, term="xterm"):
    """Ctrl-C stops a sample, drops a line, and says at an empty prompt how to leave."""
    with Conversation(tests, *ENDLESS, term=term) as talk:
        talk.type("long\r")
        talk.expect(b"\nlong" + 50 * b"U")
        os.write(talk.fd, b"\x03")
        talk.expect(b"generated: ")
        talk.type("\x03")
        talk.expect(b"(Ctrl-D ends)")
        talk.type("dropped")
        talk.expect(b"dropped")
        os.write(talk.fd, b"\x03")
        talk.type("\r")  # an empty line is no prompt
        talk.type("\x04")
        assert talk.finish() == 0 and talk.written.count(b"tok/s\r\n") == 1 and talk.written.count(b"dropped") == 1


def ended_by_signal(tests):
    with Conversation(tests) as talk:
        talk.expect(b"> ")
        talk.child.send_signal(signal.SIGTERM)
        assert talk.finish() == 128 + signal.SIGTERM
    with Conversation(tests, *ENDLESS) as talk:
        talk.type("long\r")
        talk.expect(b"\nlong")
        talk.child.send_signal(signal.SIGUSR1)
        assert talk.finish() == 0


def samples_on_terminal(tests):
    with Conversation(tests, "-g", "9", "--samples", "2", "--quiet", "1") as talk:
        texts = tests.run(CPU, "-g", "9", "--samples", "2", "--quiet", "1", "--prompt", "To").stdout.split(b"\0")
        talk.type("To\r")
        talk.expect(b"\n" + on_terminal(b"\n---\n".join(texts[:2]) + b"\n"))


def talk_without_terminal(tests, *flags):
    command = [*TALK, *MODEL, "--tokenizer", tests.folder / BYTES, "--quiet", "1", *flags]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def no_terminal(tests):
    """Each line of stdin is continued as --prompt continues it; nothing is asked for."""
    greedy = ["-g", "5", "--temperature", "0"]
    text = lambda line: tests.run(CPU, *greedy, "--prompt", line, "--quiet", "1").stdout
    long = b"x" * 10000
    for lines, prompts in ((b"To be\n\nor not", [b"To be", b"or not"]), (b"\n" + long + b"\nend\n", [long, b"end"]),
                           (b"", [])):
        written, warnings = talk_without_terminal(tests, *greedy).communicate(lines, timeout=60)
        assert written == b"".join(text(line) for line in prompts), (lines[:20], written)
        assert warnings.count(b"\n") == warnings.count(b"warning: ") == 1 + (long in prompts), warnings
        assert b"weights are random" in warnings and (b"context is 64" in warnings) == (long in prompts), warnings
    two = tests.run(CPU, *greedy, "--prompt", "To be", "--quiet", "1", "--samples", "2").stdout
    assert talk_without_terminal(tests, *greedy, "--samples", "2").communicate(b"To be\n", timeout=60)[0] == two
    with talk_without_terminal(tests, *ENDLESS) as child:  # SIGINT ends the program
        child.stdin.write(b"long\n")
        child.stdin.flush()
        assert child.stdout.read(50) == b"long" + 46 * b"U"
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=20) == 128 + signal.SIGINT


def no_conversation(tests):
    """The trainers ask nothing, on a terminal either."""
    text = tests.folder / "text.txt"
    text.write_text("To be, or not to be")
    for flags, written in ((["-s", "1", "-v", "0"], b"generating:"), (["--prompt", "To be"], b"generated: "),
                           (["-j", text], b"val loss ")):
        with Conversation(tests, "-g", "3", *flags, program=CPU, shape=SHAPE) as trainer:
            assert trainer.finish() == 0 and written in trainer.written and b"each line" not in trainer.written
            assert b"> " not in trainer.written


def refused(tests):
    for flags, message in ((["--stop", ""], b"--stop (empty)"), (["--samples", "0"], b"--samples 0")):
        result = tests.run(CPU, *flags)
        assert result.returncode == 2 and message in result.stderr and result.stderr.count(b"\n") == 1, result


def refused_by_talk(tests):
    gpt2 = ["-e", "L1C32H2T64V300", "--tokenizer", "dev/data/gpt2_tokenizer.bin"]
    for flags, message in ((["-x", "5"], b"--max-steps has no effect"), (["--prompt", "a"], b"--prompt has no effect"),
                           (["-j", "a.txt"], b"--val-data has no effect"), (["-g", "0"], b"-g 0 "),
                           (["--tempo", "1"], b"unknown flag"), (gpt2, b"a prompt would be tokenized by")):
        result = subprocess.run([*TALK, *flags], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        assert result.returncode == 2 and message in result.stderr and result.stderr.count(b"error: ") == 1, result
    result = subprocess.run([*TALK, "--help"], cwd=ROOT, capture_output=True, timeout=60)
    assert result.returncode == 0 and b"--top-k" in result.stdout and b"--batch-size" not in result.stdout


def turns_are_kept(tests):
    """A model that has learned to say again what it said: with --chat 1 it knows what that was."""
    lines = []
    for number in range(100):
        question, answer = (("red", "apple"), ("blue", "sea"))[number % 2]
        said = ("user", question), ("assistant", answer), ("user", "again"), ("assistant", answer)
        lines.append(json.dumps({"messages": [{"role": role, "content": content} for role, content in said]}))
    (tests.folder / "chat.jsonl").write_text("\n".join(lines) + "\n")
    data = tests.folder / "chat"
    for command in (["./tokenize", tests.folder / "chat.jsonl", "-o", data, "--val-fraction", "0", "--bytes", "1",
                     "--pack", "128"],
                    [*CPU, *"-e L2C64H2T128V257 -b 8 -t 128 -x 100 -v 0 -s 0".split(), "-i", f"{data}_train.bin",
                     "--loss-mask", f"{data}_train.mask", *"--optimizer muon -l 1e-2 -u 10 -q 0.1".split(), "-o",
                     tests.folder / "chatter"]):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=300)
        assert done.returncode == 0, done.stderr
    for lines, answers, most in ((["red", "again"], ["apple", "apple"], "20"),
                                 (["blue", "again"], ["sea", "sea"], "20"),
                                 (["red", "blue"], ["apple", "sea"], "60")):  # no room for the first turn
        done = subprocess.run([*TALK, "-e", tests.folder / "chatter", "--chat", "1", "--top-k", "1", "-g", most,
                               "--quiet", "1"], cwd=ROOT, input="\n".join(lines) + "\n", capture_output=True, text=True,
                              timeout=60)
        assert done.returncode == 0 and done.stdout.split("\n")[:-1] == answers, done
    for flags, message in ((["--chat", "2"], b"--chat 2"), (["--chat"], b"--chat"),
                           (["--chat=1", "--stop", "x"], b"--stop and --samples")):
        done = subprocess.run([*TALK, *MODEL, *flags], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count(b"\n") == 1, done


def main():
    os.environ.pop("TERM", None)
    with tempfile.TemporaryDirectory() as folder:
        tests = Tests(pathlib.Path(folder))
        for name, program in (("CPU", CPU), ("simulator", SIM)):
            tests.test(f"{name}: whole characters, as Python decodes the bytes", whole_characters, tests, program,
                       30 if program is CPU else 1)
            tests.test(f"{name}: a sample ends before --stop", stop_text, tests, program)
            tests.test(f"{name}: sample k does not depend on --samples", several_samples, tests, program)
        tests.test("a sample ends at the end of text", end_of_text, tests, CPU)
        tests.test("text longer than the context", long_prompt, tests, CPU)
        tests.test("a prompt that is no UTF-8", prompt_of_bytes, tests, CPU)
        tests.test("what is refused", refused, tests)
        with_readline = b"libreadline" in (ROOT / TALK[0]).read_bytes()
        if with_readline:
            for name, keys in KEYS.items():
                tests.test(f"a conversation: {name}", first_line, tests, keys)
            tests.test("history", history, tests)
        else:
            print("SKIPPED editing of prompts (apt-get install libreadline-dev)")
        tests.test("a conversation: TERM=dumb", first_line, tests, "To be\r", "dumb")
        tests.test("Ctrl-C", interrupts, tests)
        tests.test("Ctrl-C, TERM=dumb", interrupts, tests, "dumb")
        tests.test("other signals end a conversation", ended_by_signal, tests)
        tests.test("several samples in a conversation", samples_on_terminal, tests)
        tests.test("a conversation without a terminal", no_terminal, tests)
        tests.test("flags that talk refuses", refused_by_talk, tests)
        tests.test("a conversation keeps its turns", turns_are_kept, tests)
        tests.test("trainers on a terminal", no_conversation, tests)
    passed, failed = tests.counts
    print(f"{passed} passed, {failed} failed, {int(not with_readline)} skipped")
    sys.exit(failed > 0)


main()
