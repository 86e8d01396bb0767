#!/usr/bin/env python3
"""Generated text: whole characters, --stop, --samples, of the CPU trainer and of the GPU trainer in the simulator."""
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CPU, SIM = ["./train_gpt2_cpu", "--threads", "1"], ["build/BF16/train_gpt2sim"]
BYTES, NAMED = "bytes_tokenizer.bin", "named_tokenizer.bin"
SHAPE = ["-e", "L1C32H2T64V257", "-x", "0"]


def write_tokenizer(path, tokens):
    """A tokenizer file of these tokens and <|endoftext|>."""
    tokens = [*tokens, b"<|endoftext|>"]
    header = struct.pack("<256I", 20240328, 2, len(tokens), len(tokens) - 1, *[0] * 252)
    path.write_bytes(header + b"".join(bytes([len(token)]) + token for token in tokens))


class Tests:
    def __init__(self, folder):
        self.folder, self.counts = folder, [0, 0]
        write_tokenizer(folder / BYTES, [bytes([byte]) for byte in range(256)])
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
    assert re.fullmatch(rb"prompt: 5 tokens, [\d.]+ tok/s \| generated: 3\d tokens, [\d.]+ tok/s\n", lines.stderr), lines


def long_prompt(tests, program):
    """A prompt that is longer than the context, and text that becomes so."""
    for size in (63, 64, 65, 200):
        result = tests.run(program, "--prompt", "x" * size, "-g", "70", "--quiet", "1", "--samples", "2")
        first, second, rest = result.stdout.split(b"\0")
        assert result.returncode == 0 and first.startswith(b"x" * size) and second.startswith(b"x" * size) and not rest
        again = tests.run(program, "--prompt", "x" * size, "-g", "70", "--quiet", "1").stdout
        assert again == first + b"\n", (size, first, again)


def refused(tests):
    for flags, message in ((["--stop", ""], b"--stop (empty)"), (["--samples", "0"], b"--samples 0")):
        result = tests.run(CPU, *flags)
        assert result.returncode == 2 and message in result.stderr and result.stderr.count(b"\n") == 1, result


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
        tests.test("what is refused", refused, tests)
    passed, failed = tests.counts
    print(f"{passed} passed, {failed} failed, 0 skipped")
    sys.exit(failed > 0)


main()
