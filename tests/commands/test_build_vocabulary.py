"""The command that builds a vocabulary: what it cannot do, in one line."""

from tests.command_line import mistake
from tests.data.small_corpus import make_corpus


def test_the_command_ends_with_one_line_and_code_2(tmp_path):
    make_corpus(tmp_path / "corpus")
    folders = (f"--corpus_dir={tmp_path}/corpus", f"--output_dir={tmp_path}/v")
    error = mistake("build_vocabulary", *folders, output_start="184 sentences")
    # The defaults ask for 8,000 pieces.
    start = f"decoupled build_vocabulary: error: {tmp_path}/v/sentencepiece.model: "
    assert error.startswith(start + "vocab_size 8000 is more than this text can give")
    assert not (tmp_path / "v").exists()
