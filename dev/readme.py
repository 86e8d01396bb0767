"""What a script writes into a README lies between two markers, <!-- NAME begin --> and <!-- NAME end -->, which stay."""
import sys


def write_between(path, name, content):
    """Puts content between the markers; content may be a function of what is there now."""
    text, begin, end = path.read_text(), f"<!-- {name} begin -->", f"<!-- {name} end -->"
    if begin not in text or end not in text:
        sys.exit(f"no markers {begin} ... {end} in {path}: what is to be written needs its place there")
    first, last = text.index(begin) + len(begin), text.index(end)
    path.write_text(text[:first] + "\n" + (content(text[first:last]) if callable(content) else content) + "\n" + text[last:])
