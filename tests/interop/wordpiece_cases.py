"""Texts that are hard for BERT's tokenizer, and what transformers makes of them.

    python wordpiece_cases.py OUT.json

Runs in an environment with transformers. `tests/data/wordpiece_cases.json` was made
with 5.23: `pieces`, `texts`, and for each of eight settings the rules, ids and offsets.
"""

import json
import sys
import tempfile
import unicodedata

import transformers

TEXTS = [
    "",
    "   ",
    "  two  spaces \t a tab\nand\r\nlines ",
    "don't U.S.A. 3.14 $5 a^b `c` ~d~ |e| <f> =g= +h+",
    "no\u00a0break \u3000wide \u2028line \u202fnarrow \u1680ogham \u0085next",
    "zero\u200bwidth soft\u00adhyphen word\u2060joiner \ufeffmark",
    "می\u200cخواهم क्\u200dष 👨\u200d👩\u200d👧",
    "\u200eleft\u200f \u202aabc\u202c",
    "a\x00b c\x01d e\x7ff g\ufffdh i\ue000j \U000f0000",
    "café cafe\u0301 CAFÉ Ångström \u212bngstro\u0308m",
    "e\u0301\u0327 \u0301alone a \u0301 b",
    "Việt Vie\u0323\u0302t",
    "Straße STRASSE ẞ ß ﬁne oﬃce ½ ① ㎏ ™",
    "ΟΔΥΣΣΕΥΣ Σίγμα ς",
    "İstanbul DİYARBAKIR ışık ŉ ǰ",
    "السَّلامُ عَلَيْكُمْ",
    "हिन्दी में क़ \u0915\u093c",
    "ภาษาไทย น้ำ กำ",
    "ភាសាខ្មែរ",
    "한국어 \u1112\u1161\u11ab\u1100\u1173\u11af ㄱㅏ",
    "漢字かな交じり文 カタカナ ｶﾞ カ\u3099 中文，标点。",
    "𠀀𠮷 \U0002a700 \U0002b820 \uf900 豈 〇々ー・",
    "ＦＵＬＬ ｗｉｄｔｈ，１２３！",
    "“quoted” «fr» — … ‐ ⸺ \u2e55 、 ؟ । \u09fd \u166d",
    "𝒳𝓎 𐍈 👍🏽 🇩🇪 1️⃣ ☃ ❤️",
    "x" * 99 + " " + "x" * 100 + " " + "x" * 101,
    "ж" * 51 + " " + "ж" * 100 + " " + "ж" * 101,
    "e\u0301" * 60 + " " + "é" * 101,
    "##ing a##b # ## [unused1] [mask]",
    "unknownq letter",
    "a\u0378b \uffff \U0001ffff",
]
# These stay without a piece.
UNKNOWN = set("q☃𐍈")


def pieces() -> list[str]:
    """Special pieces, all characters in every form of the texts, and a few words."""
    forms = set()
    for text in TEXTS:
        for form in ("NFC", "NFD"):
            normal_form = unicodedata.normalize(form, text)
            forms |= {*normal_form, *normal_form.lower(), *text, *text.lower()}
    chars = sorted(c for c in forms - UNKNOWN if unicodedata.category(c)[0] not in "ZC")
    words = ["cafe", "café", "stra", "##ße", "##sse", "한국", "##국어", "##ing", "two"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]"]
    return [*special, *words, *chars, *(f"##{c}" for c in chars)]


def main(path: str) -> None:
    """Tokenises the texts in all settings, and writes the file."""
    content = {"pieces": pieces(), "texts": TEXTS, "settings": []}
    for setting in range(8):
        lower, strip, chinese = (bool(setting & bit) for bit in (4, 2, 1))
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/vocab.txt", "w", encoding="utf-8") as handle:
                handle.writelines(f"{piece}\n" for piece in content["pieces"])
            config = {
                "tokenizer_class": "BertTokenizer",
                "do_lower_case": lower,
                "strip_accents": strip,
                "tokenize_chinese_chars": chinese,
            }
            with open(f"{folder}/tokenizer_config.json", "w") as handle:
                json.dump(config, handle)
            with open(f"{folder}/config.json", "w") as handle:
                json.dump({"model_type": "bert"}, handle)
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        tokens = tokenizer(TEXTS, add_special_tokens=False, return_offsets_mapping=True)
        content["settings"].append(
            {
                "rules": [lower, strip, chinese],
                "ids": tokens["input_ids"],
                "offsets": tokens["offset_mapping"],
            }
        )
    with open(path, "w", encoding="ascii") as handle:
        json.dump(content, handle, separators=(",", ":"))
        handle.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
