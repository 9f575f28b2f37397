"""Paragraphs become sentences; what is no text is left out and counted."""

import collections
import re
import time

import pytest

from decoupled.corpora import sentences
from decoupled.corpora.sentences import clean_sentences, split_sentences
from decoupled.corpora.wikipedia.dump import read_articles
from decoupled.corpora.wikipedia.wiki_templates import HOLE
from decoupled.corpora.wikipedia.wikitext import article_paragraphs
from tests.corpora.dumps import ENGLISH

# Languages and paragraphs, of which | parts the sentences.
PARAGRAPHS = """
en Dr. Smith came. | He left (e.g. by bus)! | Why?
de Das ist z. B. gut. | Am 3. Mai 1990 kam er.
fr Il est né. | Où ? | Ici !
ru Он родился в 1900 г. в городе. | Он жил там.
zh 这是第一句。 | 这是第二句！ | 是吗？ | 是。
ja これは文です。 | 次の文です。
ko 이것은 문장이다. | 다음 문장이다.
ar هذه جملة. | هل هذه جملة؟ | نعم.
fa این یک جمله است. | آیا جمله است؟
ur یہ جملہ ہے۔ | یہ دوسرا ہے۔
he זה משפט. | וזה עוד משפט.
hi यह वाक्य है। | यह दूसरा है।
hy Սա նախադասություն է։ | Սա երկրորդն է։
bn এই জেলার জনসংখ্যা প্রায় ৩.৫ লক্ষ। | ভূমিকম্পের মাত্রা ছিল ৬.৩।
hi जनसंख्या १.९ करोड़ है। | संस्करण २.०.१ नया है।
fa جمعیت ۳.۵ میلیون است. | این ۲۰ است.
ar بلغ ٣.٥ مليون. | هل هو ٢٠؟
my ၃.၅ သန်းရှိသည်။ | ဒုတိယ။
th ราคา ๑๐.๓๐ บาท
ja 人口は１．９万人です。 | 次は２番です。
en It was 1.9 in 1990. | 5 men came.
th เขาเกิด พ.ศ. 2470 ที่กรุงเทพ และครองราชย์ตั้งแต่ พ.ศ. 2489 จนถึง พ.ศ. 2559
lo ລາວເກີດໃນປີ ຄ.ສ. 1950 ທີ່ວຽງຈັນ
km គាត់កើតនៅឆ្នាំ គ.ស. 1950 នៅភ្នំពេញ។ | វានៅ។
hi वह सन् ई.पू. 300 में पाटलिपुत्र में था। | डॉ. राम आए।
mr त्याचा जन्म इ.स. १९५० मध्ये मुंबई येथे झाला. | तो आला.
te అతను క్రీ.శ. 1950 లో జన్మించాడు. | అతను వచ్చాడు.
si ඔහු ක්‍රි.ව. 1950 දී උපත ලැබීය. | ඔහු ආවේය.
ar ولد في ق.م. 300 في بغداد. | اكتشفَ د. أحمد دواء. | جاء هو.
he הוא נולד בשנת ת.ש.ח. 1948 בעיר. | זה סוף.
ka ის დაიბადა ძვ.წ. 300 წელს თბილისში. | ის მოვიდა.
ur وہ ق۔م۔ 300 میں پیدا ہوا۔ | وہ آیا ہے۔
ja 彼はＡ．Ｂ．Ｃ．社で働いている。 | 「行く。」と彼は言った。 | 「行く。」
my မြန်မာနိုင်ငံ၏ အကြီးဆုံးမြို့ ဖြစ်သည်။ | အိမ်၊ ကား ရှိသည်။
de Im 19. und 20. Jahrhundert wuchs die Stadt. | Er wurde 20. | Dann kam er.
sw Alikuja Dk. Juma leo. | Kisha akaenda.
vi Ông sinh tại TP.HCM và sống ở đó. | Ông là bác sĩ.
vi Ông sống ở TP. Hồ Chí Minh. | PGS. TS. Trần Bình và ThS. Lê Minh là bạn. | Ông đến.
tr II. Dünya Savaşı bitti. | Takım 1. Lig'e çıktı. | Doç. Dr. Ayşe ve Sn. Can geldi.
hu Ő IV. Béla király volt. | Meghalt 1920. | Új élet kezdődött.
ko "나는 간다."라고 그는 말했다. | "네." | 그녀는 "어디?"라고 물었다.
en It is made by the .NET Framework. | He left. | It is an .EXE file (.PDF too).
am ይህ ዓረፍተ ነገር ነው። | ይህ ሁለተኛው ነው፡፡ | «ሦስተኛው ነው፡፡» | አራተኛው፡ነው፡፡፡ | አምስት።
"""


@pytest.mark.parametrize("row", PARAGRAPHS.strip().split("\n"))
def test_sentences_end_where_the_language_ends_them(row):
    language, _, parted = row.partition(" ")
    expected = parted.split(" | ")
    paragraph = ("" if language in ("zh", "ja") else " ").join(expected)
    assert split_sentences(paragraph, language) == expected


def test_urdu_sentences_end_without_a_space():
    assert split_sentences("یہ جملہ ہے۔یہ دوسرا ہے۔", "ur") == [
        "یہ جملہ ہے۔",
        "یہ دوسرا ہے۔",
    ]


@pytest.mark.parametrize(
    "language",
    [
        "zh-min-nan",
        "simple",
        "xx",
        "",
        "zh-yue",
        "be-x-old",
        "sr-Latn",
        "zh_Hans",
        "sr@latin",
        "EN",
    ],
)
def test_any_language_code_is_understood(language):
    assert split_sentences("One is. Two is. 三。四。", language) == [
        "One is.",
        "Two is.",
        "三。",
        "四。",
    ]


@pytest.mark.parametrize(
    "language, sentences",
    [
        # To Unicode, Georgian's letters are lowercase.
        ("ka", ["თბილისი დედაქალაქია.", "ის მტკვარზე მდებარეობს.", "აქ დასრულდა."]),
        ("km", ["ភ្នំពេញជារាជធានី។", "វានៅលើទន្លេ។", "ចប់៕"]),
        ("bo", ["ལྷ་ས་ནི་གྲོང་ཁྱེར་ཡིན།", "འདི་ནི་ཆེན་པོ་རེད།", "རྫོགས་སོ།།"]),
    ],
)
def test_sentences_of_scripts_that_sentencex_does_not_know(language, sentences):
    assert split_sentences(" ".join(sentences), language) == sentences
    dropped = collections.Counter()
    assert clean_sentences([" ".join(sentences)], language, 4, dropped) == sentences


@pytest.mark.parametrize("letters", ["\u1000\u1031", "\u1780\u17b6", "a\u0301"])
def test_a_paragraph_without_spaces_is_cut_between_characters(letters):
    paragraph = "\u1000" + letters * 5000
    sentences = split_sentences(paragraph, "my")
    assert "".join(sentences) == paragraph and len(sentences) > 1
    assert {sentence[0] for sentence in sentences} <= {"\u1000", letters[0]}


@pytest.mark.parametrize("mark", ["\u0301", "\u200d", "\u0e49"])
def test_a_paragraph_of_marks_takes_no_time(mark):
    paragraph = "a" + mark * 40_000
    began = time.process_time()
    assert "".join(split_sentences(paragraph, "xx")) == paragraph
    # Quadratic time would be minutes.
    assert time.process_time() - began < 10


def test_a_small_letter_begins_no_sentence():
    assert split_sentences("Она умерла в 5 в. до н. э. в Афинах. Да.", "xx") == [
        "Она умерла в 5 в. до н. э. в Афинах.",
        "Да.",
    ]


@pytest.mark.parametrize(
    "language, sentence",
    [
        ("bg", "Годините се бележат със „сл.Хр.“ (след Христа) или „н.е.“ (от н.е.)."),
        ("bg", "Годините се бележат със „сл.Хр.“ (След Христа) или без уточнение."),
        ("sr", "Године се бележе са „н.е.“ (нове ере) или „п.н.е.“ (пре нове ере)."),
        ("de", "Er schrieb „Was tun?“ (deutsch 1902) und „Wo?“ (Bonn 1903) in Genf."),
        ("fr", "Il publia « Où ? » (en 1900) puis « Ici ! » (Paris, 1901) sans nom."),
        ("en", 'It has "who are you?" (WRU), "are you?" (RU), and others.'),
        ("ru", "Он написал «Что делать?» (роман) и «Кто виноват?» (Москва, 1846)."),
        ("zh", "他写了“谁？”（小说）和“哪里？”（诗）。"),
        ("hi", "उसने “कौन?” (उपन्यास) लिखा।"),
    ],
)
def test_brackets_after_a_quotation_belong_to_its_sentence(language, sentence):
    assert split_sentences(sentence, language) == [sentence]


@pytest.mark.parametrize(
    "second",
    [
        "(The others stayed.) Then it rained.",
        "(The others stayed. It rained.)",
        "[A] trial followed.",
        "[a]ny trial followed.",
        "(2) The next day came.",
    ],
)
def test_brackets_that_hold_or_begin_a_sentence_begin_one(second):
    assert split_sentences(f"He said it plainly. {second}", "en")[0] == (
        "He said it plainly."
    )


def test_a_whole_sentence_in_brackets_stands_alone_also_after_a_quotation():
    assert split_sentences('He said "Go." (The others stayed.) It rained.', "en") == [
        'He said "Go."',
        "(The others stayed.) It rained.",
    ]


@pytest.mark.parametrize(
    "language, first, second",
    [
        ("sw", "Mji huu una wakazi wengi.", "Bw. Odinga alizaliwa hapa."),
        ("hi", "यह शहर बहुत पुराना है।", "डॉ. सिंह यहाँ रहते थे।"),
        ("tr", "Şehir çok büyük ve güzeldir.", "II. Murad burada doğdu."),
        ("vi", "Ông sống ở thành phố đó.", "GS. Nguyễn Văn An là bạn."),
    ],
)
def test_a_short_title_stays_with_its_name(language, first, second):
    assert split_sentences(f"{first} {second}", language, 10) == [first, second]


def test_nothing_is_lost_in_splitting():
    text = "A b. C d? “E f!” g h: I 1.5 j… K l。M"
    joined = "".join(split_sentences(text, "en"))
    assert re.sub(r"\s", "", joined) == re.sub(r"\s", "", text)


def test_what_is_no_text_is_left_out_and_counted():
    paragraphs = [
        "A sentence that is long enough. No.",
        "No.",
        "Yes. He did. It was on the 7. day",
        f"The area is {HOLE} in all. Another sentence that stays here.",
        "A [[link that is open. The {{template stays open. See http://a.org now.",
        "1990–1995: 12, 13, 14, 15 (16) 17%.",
        "* ; , The start is stripped.",
        "- -5 degrees are not 5 degrees.",
    ]
    dropped = collections.Counter()
    assert clean_sentences(paragraphs, "en", 10, dropped) == [
        "A sentence that is long enough. No.",
        "Yes. He did.",
        "It was on the 7. day",
        "Another sentence that stays here.",
        "The start is stripped.",
        "-5 degrees are not 5 degrees.",
    ]
    assert dropped == {
        sentences.SHORT: 1,
        sentences.INCOMPLETE: 1,
        sentences.MARKUP: 3,
        sentences.NO_TEXT: 1,
    }


@pytest.mark.parametrize(
    "language, sentence",
    [
        ("zh", "他是医生。"),
        ("ja", "彼は来た。"),
        ("th", "เขาเป็นหมอที่ดี"),
        ("ko", "그는 의사다."),
        ("hi", "वह डॉक्टर हैं।"),
        ("ar", "هو طبيب جيد."),
        ("my", "သူသည် ဆရာဝန် ဖြစ်သည်။"),
        ("km", "គាត់ជាវេជ្ជបណ្ឌិត។"),
        ("de", "Er kam 1990."),
    ],
)
def test_short_sentences_of_all_scripts_stay(language, sentence):
    dropped = collections.Counter()
    assert clean_sentences([sentence], language, 8, dropped) == [sentence]
    assert not dropped


@pytest.mark.parametrize(
    "language, paragraph, expected",
    [
        (
            "hi",
            "यह बड़ा शहर है| वह छोटा है | उसने कहा “वह घर है |”",
            ["यह बड़ा शहर है।", "वह छोटा है।", "उसने कहा “वह घर है।”"],
        ),
        ("bn", "এটি একটি শহর | এটি খুব সুন্দর।", ["এটি একটি শহর।", "এটি খুব সুন্দর।"]),
        ("hi", "मुख्य पृष्ठ | ताज़ा समाचार | खेल", []),
        ("hi", "यह बड़ा शहर|नगर है।", []),
        ("en", "It is a line | of cells.", []),
    ],
)
def test_a_bar_may_stand_for_a_danda(language, paragraph, expected):
    dropped = collections.Counter()
    assert clean_sentences([paragraph], language, 4, dropped) == expected
    assert dropped == ({} if expected else {sentences.MARKUP: 1})


@pytest.mark.parametrize(
    "language, paragraph",
    [
        ("ja", "彼は私に聞いた。「はい。」彼女は私に答えた。"),
        ("ko", '그는 나에게 물었다. "네." 그녀가 나에게 대답했다.'),
        ("en", 'He asked her about it. "No." She left him alone.'),
    ],
)
def test_a_short_quotation_stays_with_a_sentence_beside_it(language, paragraph):
    dropped = collections.Counter()
    result = clean_sentences([paragraph], language, 10, dropped)
    assert (" " * (language != "ja")).join(result) == paragraph and len(result) == 2
    assert not dropped


# What prose has rarely, and markup often; per sentence of the shortened English dump.
SUSPICIOUS = re.compile(
    r"\[\[|\]\]|\[\d|[{}|<>]|==|''|https?:|www\.|&\w+;|thumb\||\dpx\b|__|\ufffc|\ufff9"
    r"|~~|\( | \)|\(\)|\([,;]|[,;]\)|,,| ,|;;| ;|\bISBN\b|\.jpg|\.png|^[*#:;,)]|\\"
)


def test_a_real_dump_reads_as_prose(data_dir):
    path = f"{data_dir}/wikipedia/enwiki-pages-articles-shortened.xml.bz2"
    dropped = collections.Counter()
    articles = list(read_articles(path, dropped))
    assert len(articles) == 98 and articles[0].title == "Anarchism"
    assert dropped == {
        "pages outside namespace 0": 1,
        "redirects": 99,
        "disambiguation pages": 8,
    }
    # The name of its kind in the dump.
    assert ENGLISH[6] == "File" and "[[File:" in articles[0].wikitext
    documents = [
        clean_sentences(
            article_paragraphs(article.wikitext, dropped), "en", 10, dropped
        )
        for article in articles
    ]
    result = [sentence for document in documents for sentence in document]
    suspicious = [sentence for sentence in result if SUSPICIOUS.search(sentence)]
    unended = [s for s in result if s.rstrip("\"'”’)]»")[-1:] not in tuple(".!?:;…")]
    assert len(result) > 18_500
    assert sum(map(len, result)) > 2_600_000
    assert len(suspicious) / len(result) < 0.0005
    assert len(unended) / len(result) < 0.003
    assert sum(sentence[0].islower() for sentence in result) / len(result) < 0.002
    # Bold text leaves no apostrophe behind: "Achilles' was a Greek hero".
    titles = [
        d[0] for d in documents if d and re.match(r"[^,.(]*\w' (?:is|was) ", d[0])
    ]
    assert titles == []
    assert sum(not document for document in documents) <= 1


@pytest.mark.parametrize(
    "language, unit",
    [
        *(("en", unit) for unit in ("“", "«", "« ", "„", "'", "“a“ ", "• ", "a. ")),
        *(("ja", unit) for unit in ("“", "a. ")),
    ],
)
def test_the_time_does_not_grow_with_the_square_of_a_paragraph(unit, language):
    # 200,000 of some of these characters took more than half a minute.
    paragraph = "It is. " + unit * (100_000 // len(unit)) + " The end."
    begun = time.process_time()
    result = split_sentences(paragraph, language)
    assert time.process_time() - begun < 2.5
    assert "".join("".join(result).split()) == "".join(paragraph.split())


@pytest.mark.parametrize("language", ["en", "ja"])
def test_a_long_paragraph_is_split_as_its_sentences_are(language, monkeypatch):
    one = "Dr. Smith bought 3.5 kg of it, e.g. red ones. “He did.” 彼は来た。彼は来た。"
    result = split_sentences(one * 300, language)
    assert len(result) > 300
    monkeypatch.setattr(sentences, "_MAX_CHARACTERS", 1 << 30)
    assert result == split_sentences(one * 300, language)


@pytest.mark.parametrize(
    "language, words",
    [("ar", "هذا نص طويل جدا بدون نقاط "), ("th", "ประเทศไทยตั้งอยู่ในทวีปเอเชีย ")],
)
def test_a_long_paragraph_without_an_end_is_cut_between_words(language, words):
    result = split_sentences(words * 900, language)
    assert len(result) > 1
    assert " ".join(result) == (words * 900).strip()
