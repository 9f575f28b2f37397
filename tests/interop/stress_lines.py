"""10,000 lines in all scripts of the real data, and random Unicode."""

import json
import pathlib
import random
import unicodedata

COUNT = 10_000
RANDOM_COUNT = 2_000

_TRAPS = (
    "",
    " ",
    "   two  spaces   and\ttabs \n and lines\r\n",
    "ﬁne １２３ ½ ï ☃ ﷺ ㍿ …",
    "cafe\u0301 A\u030a n\u0303 \u1112\u1161\u11ab\u1100\u1173\u11af",
    "q\u0323\u0307 q\u0307\u0323 \u0344",
    "``quoted'' ''text``",
    "a\u200bb c\u00a0d e\u3000f \u00adg \ufeffh \u2028i",
    "👩‍👩‍👧‍👦 🇫🇷 👍🏽",
    "▁ ▁▁word ▁",
    "𝒳𝓎 𐍈 𠀋",
    "\x00\x01\x7f control \u0085 \u180e",
    "wordwithoutend" * 40,
    "ああああああああああ aaaaaaaaaaaaaaaa !!!!!!!!!!!",
)

# The lines before this place are made to be difficult.
FIRST_REAL = len(_TRAPS) + RANDOM_COUNT


def real_lines(data_dir: str) -> list[str]:
    """Every line of the parallel sentences, the questions and texts, and the pairs."""
    folder = pathlib.Path(data_dir)
    lines = []
    for path in sorted((folder / "tatoeba_parallel").iterdir()):
        lines += path.read_text(encoding="utf-8").splitlines()
    for path in sorted((folder / "xtreme" / "xquad").glob("*.json")):
        for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                lines.append(paragraph["context"])
                lines += [row["question"] for row in paragraph["qas"]]
    for path in sorted((folder / "xtreme" / "xnli").glob("*.tsv")):
        lines += path.read_text(encoding="utf-8").splitlines()
    return lines


def random_line(generator: random.Random) -> str:
    """Characters of any assigned kind, a few of them repeated, with spaces between."""
    characters = []
    for _ in range(generator.randint(1, 30)):
        code = generator.choice(
            (
                generator.randrange(0x20, 0x250),
                generator.randrange(0x250, 0x3000),
                generator.randrange(0x3000, 0x10000),
                generator.randrange(0x10000, 0x20000),
            )
        )
        character = chr(code)
        if unicodedata.category(character) in ("Cs", "Cn"):
            character = " "
        characters.append(character * generator.choice((1, 1, 1, 2, 5)))
    return "".join(characters)


def stress_lines(data_dir: str) -> list[str]:
    """`COUNT` lines: traps, random Unicode, and a sample of the real ones."""
    generator = random.Random(0)
    noise = [random_line(generator) for _ in range(RANDOM_COUNT)]
    sample = generator.sample(real_lines(data_dir), COUNT - FIRST_REAL)
    return [*_TRAPS, *noise, *sample]
