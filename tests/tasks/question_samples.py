"""Questions in several scripts, in SQuAD's form, and vocabularies for them."""

import json

import numpy as np

from decoupled.configs import QuestionAnsweringConfig, VocabularyConfig
from decoupled.data.vocabulary_training import train_vocabulary
from decoupled.tasks.qa_answers import span_text
from decoupled.tasks.qa_files import Answer, Question

SETTINGS = QuestionAnsweringConfig(
    max_question_length=16, doc_stride=16, max_answer_length=40, n_best=5
)

# language -> context, then pairs of question and answer.
TEXTS = {
    "en": (
        "The river Elbe is 1,094 km long. It rises in the Giant Mountains.",
        ("How long is the Elbe?", "1,094 km"),
        ("Where does it rise?", "in the Giant Mountains"),
    ),
    "de": (
        "Die Elbe ist 1094 km lang. Sie entspringt im Riesengebirge.",
        ("Wie lang ist die Elbe?", "1094 km"),
        ("Wo entspringt sie?", "im Riesengebirge"),
    ),
    "ar": (
        "يبلغ طول نهر إلبه ١٠٩٤ كم، وينبع من جبال العمالقة.",
        ("ما طول نهر إلبه؟", "١٠٩٤ كم"),
        ("من أين ينبع؟", "جبال العمالقة"),
    ),
    "hi": (
        "एल्बे नदी १०९४ किमी लंबी है। यह जायंट पर्वत से निकलती है।",
        ("एल्बे कितनी लंबी है?", "१०९४ किमी"),
        ("यह कहाँ से निकलती है?", "जायंट पर्वत"),
    ),
    "zh": (
        "易北河长１０９４公里，发源于巨人山脉。",
        ("易北河有多长？", "１０９４公里"),
        ("它发源于哪里？", "巨人山脉"),
    ),
    "th": (
        "แม่น้ำเอลเบอมีความยาว ๑๐๙๔ กิโลเมตร มีต้นน้ำที่เทือกเขายักษ์",
        ("แม่น้ำเอลเบอยาวเท่าไร", "๑๐๙๔ กิโลเมตร"),
        ("ต้นน้ำอยู่ที่ไหน", "เทือกเขายักษ์"),
    ),
    "ko": (
        "엘베강의 길이는 1094 km이다. 자이언트 산맥에서 발원한다.",
        ("엘베강의 길이는 얼마인가?", "1094 km"),
        ("어디에서 발원하는가?", "자이언트 산맥"),
    ),
}


def documents(language, with_answers=True):
    """The file of a language in SQuAD's form."""
    context, *pairs = TEXTS[language]
    questions = []
    for number, (question, answer) in enumerate(pairs):
        gold = {"text": answer, "answer_start": context.index(answer)}
        empty_answer = {"text": "", "answer_start": 0}
        questions.append(
            {
                "id": f"{language}-{number}",
                "question": question,
                "answers": [gold if with_answers else empty_answer],
            }
        )
    paragraph = {"context": context, "qas": questions}
    return {"data": [{"title": "Elbe", "paragraphs": [paragraph]}], "version": "1.1"}


def write_document(path, document):
    """Writes a document as JSON; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def question(context, answer, text="What is it?"):
    """A question whose answer is the first place of `answer` in the context."""
    start = context.index(answer)
    span = Answer(answer, start, start + len(answer))
    return Question("q", text, context, (span,))


def make_vocabulary(path, size=150):
    """A vocabulary of the languages above but Thai, whose characters are unknown."""
    texts = [text for language in TEXTS if language != "th" for text in TEXTS[language]]
    sentences = [text if isinstance(text, str) else " ".join(text) for text in texts]
    config = VocabularyConfig(size, 1.0, False, 10**6, 10**9, 16)
    return train_vocabulary(sentences, str(path), config)


def gold_answers(questions, features):
    """What a model without any error would answer: the text of the gold pieces."""
    answers = [""] * len(questions)
    for row in np.flatnonzero(features["end_positions"] > 0):
        first, last = (features[f"{end}_positions"][row] for end in ("start", "end"))
        index = features["example_index"][row]
        answers[index] = span_text(questions[index], features, row, first, last)
    return answers
