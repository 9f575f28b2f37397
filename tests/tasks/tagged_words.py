"""Words of several scripts, sentences of them, and a vocabulary that knows some."""

from decoupled.configs import VocabularyConfig
from decoupled.data.vocabulary_training import train_vocabulary

TEXT = (
    "the cat sat on the mat and the dog ran after it",
    "die Katze saß auf der Matte und der Hund lief",
    "кошка сидела на коврике и собака бежала за ней",
    "القط جلس على السجادة والكلب ركض وراءه",
    "แมวนั่งบนเสื่อและหมาวิ่งตามมัน",
    "बिल्ली चटाई पर बैठी और कुत्ता उसके पीछे भागा",
    "猫坐在垫子上狗追着它跑",
    "猫はマットの上に座り犬は後を追った",
    "고양이가 매트 위에 앉았고 개가 쫓아갔다",
)
# Normalisation leaves nothing of these.
INVISIBLE = ("\u200b", "\u200e\u200f", "\x01", "\x7f\x02", "", " ", "\u3000", "\ufeff")
DIFFICULT = (
    *INVISIBLE,
    "cafe\u0301",
    "e\u0301\u0302\u0323",
    "السَّلَامُ",
    "ﷺ",
    "ﬁne",
    "½",
    "１２３",
    "con người",
    "\u00a0",
    "a\u00adb",
    "👩\u200d👩\u200d👧",
    "[MASK]",
    "<unk>",
    "▁",
    "𐍈",
    "\u2028",
    "หมาวิ่ง",
    "猫坐在垫子上狗追着它跑",
    "Donaudampfschifffahrtsgesellschaft" * 3,
)


def small_vocabulary(path):
    """A vocabulary of `TEXT`; letters that are not in it are unknown."""
    config = VocabularyConfig(150, 1.0, False, 10**6, 10**9, 16)
    return train_vocabulary(list(TEXT) * 4, str(path), config)
