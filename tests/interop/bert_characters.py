"""What BERT's tokenizer makes of each character, as a file of arrays.

    python bert_characters.py OUT.npz

Runs in an environment with `tokenizers`, whose normaliser and pre-tokenizer are asked
about every code point. `decoupled/data/bert_characters.npz` was made with 0.23.3, and
`decoupled.data.wordpiece` describes its arrays.
"""

import sys

import numpy as np
from tokenizers import normalizers, pre_tokenizers

PAGE = 128
SPACE, INSIDE, ALONE = 0, 1, 2
SURROGATES = range(0xD800, 0xE000)


def kind_of(character: str, kinds: dict[str, int]) -> int:
    """What the pre-tokenizer makes of a character between two letters."""
    if character not in kinds:
        parts = pre_tokenizers.BertPreTokenizer().pre_tokenize_str(f"a{character}b")
        kinds[character] = {1: INSIDE, 2: SPACE, 3: ALONE}[len(parts)]
    return kinds[character]


def main(path: str) -> None:
    """Asks about all characters in all settings, and writes the arrays."""
    codes = np.zeros((8, 0x110000), np.uint16)
    # Code -> (what replaces the character, kind of each character of it). The first
    # four stand for the character itself, in a word and alone, nothing, and a space.
    numbers: dict = {}
    kinds: dict[str, int] = {}
    for setting in range(8):
        lower, strip, chinese = (bool(setting & bit) for bit in (4, 2, 1))
        normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=chinese,
            strip_accents=strip,
            lowercase=lower,
        )
        for point in range(0x110000):
            if point in SURROGATES:
                continue
            text = normalizer.normalize_str(chr(point))
            # Spaces around a Chinese character.
            is_apart = len(text) >= 2 and text[0] == text[-1] == " "
            text = text[1:-1] if is_apart else text
            result = tuple(ALONE if is_apart else kind_of(c, kinds) for c in text)
            if not text:
                code = 2
            elif result == (SPACE,):
                code = 3
            elif text == chr(point):
                code = {INSIDE: 0, ALONE: 1}[result[0]]
            else:
                code = numbers.setdefault((text, result), 4 + len(numbers))
            codes[setting, point] = code
    pages, index = np.unique(codes.reshape(-1, PAGE), axis=0, return_inverse=True)
    texts = [text for text, _ in numbers]
    np.savez_compressed(
        path,
        index=index.reshape(8, -1).astype(np.uint16),
        pages=pages,
        lengths=np.array([0] * 4 + list(map(len, texts)), np.uint8),
        points=np.array([ord(c) for text in texts for c in text], np.uint32),
        kinds=np.array([kind for _, row in numbers for kind in row], np.uint8),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
