"""Pairs of Shakespeare's own lines: asked is preferred to said. Of a speaker's speeches of one line in his plays, one
that ends with ? is the chosen answer to his name, and one that ends with . or ! the rejected one."""
import json
import pathlib
import random
import re

PLAYS = pathlib.Path(__file__).resolve().parents[1] / "data/shakespeare"


def pairs(most_bytes=48, seed=1):
    asked, said = {}, {}
    for play in sorted(PLAYS.glob("*.txt")):
        for name, line in re.findall(r"\n\n([A-Z][A-Z ]+\.)\n([^\n]+[?.!])(?=\n\n)", play.read_text(errors="replace")):
            if len(name) + len(line) < most_bytes:
                (asked if line[-1] == "?" else said).setdefault((play.name, name), []).append(line)
    found = [{"prompt": f"{key[1]}\n", "chosen": question, "rejected": statement} for key in sorted(asked)
             for question, statement in zip(asked[key], said.get(key, []))]
    random.Random(seed).shuffle(found)
    return found


def write(path):
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs()))
