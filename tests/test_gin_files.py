"""Every settings file that is shipped can be read and holds nothing without effect.

A test looks at all files and shows every one that breaks its rule.
"""

import pathlib
import re
from collections import Counter

import gin
import pytest

from decoupled import configs
from decoupled.core.errors import UserError
from decoupled.launch import gin_files, gin_reader
from tests.helpers import tiny_model

FOLDER = pathlib.Path(gin_files.packaged_folder())
FILES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.gin"))

STATEMENT = re.compile(r"^([\w./]+)\s*=", re.MULTILINE)
MACRO = re.compile(r"^([\w/]+)\s*=", re.MULTILINE)


@pytest.fixture(autouse=True)
def clear():
    gin.clear_config()
    yield
    gin.clear_config()


def text_of(name):
    """A file without its comments."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    return re.sub(r"^\s*#.*$|\s#[^'\"]*$", "", text, flags=re.MULTILINE)


def test_there_are_files():
    assert "runs/demo_pretrain.gin" in FILES


def test_files_can_be_read_with_all_that_they_include():
    found = []
    for name in FILES:
        gin.clear_config()
        reader = gin_reader.Reader(configs.PretrainConfig, gin_files.find_file)
        try:
            reader.read_file(gin_files.find_file(name))
        except UserError as error:
            found.append(f"{name}: {error}")
    assert not found, "\n".join(found)


def test_files_bind_no_key_twice():
    found = [
        f"{name}: {key}"
        for name in FILES
        for key, times in Counter(STATEMENT.findall(text_of(name))).items()
        if times > 1
    ]
    assert not found, "\n".join(found)


def test_files_use_the_macros_that_they_define():
    found = []
    for name in FILES:
        text = text_of(name)
        defined = {key for key in MACRO.findall(text) if "." not in key}
        unused = defined - set(re.findall(r"%([\w/]+)", text))
        found += [f"{name}: {macro}" for macro in sorted(unused)]
    assert not found, "\n".join(found)


def test_tasks_count_their_checkpoints_right():
    """One every so many steps, and one at the end."""
    steps = r"([\d,]+) steps: (\d+) checkpoints.*\n.*eval_every_steps = (\d+)"
    found = []
    for name in FILES:
        text = (FOLDER / name).read_text(encoding="utf-8")
        for match in re.findall(steps, text):
            total, problem, every = (int(number.replace(",", "")) for number in match)
            if problem != -(-total // every):
                found.append(f"{name}: {-(-total // every)}, not {problem}")
    assert not found, "\n".join(found)


def test_files_say_what_they_are_for():
    texts = {name: (FOLDER / name).read_text(encoding="utf-8") for name in FILES}
    assert [name for name, text in texts.items() if not text.startswith("# ")] == []


@pytest.mark.parametrize(
    "root",
    [configs.PretrainConfig, configs.ModelConfig, configs.ParametersConfig],
)
def test_a_model_file_of_an_earlier_version_is_read(tmp_path, root):
    """As `convert` and every run write it: all sizes, no includes."""
    sizes = vars(tiny_model(vocab_size=300, max_positions=512))
    earlier = {**sizes, "output_embedding_rank": 0}
    del earlier["project_equal_widths"]
    lines = [f"ModelConfig.{name} = {value!r}\n" for name, value in earlier.items()]
    (tmp_path / "model.gin").write_text("".join(lines))
    config = gin_files.configure(root, [str(tmp_path / "model.gin")], [])
    assert vars(getattr(config, "model", config)) == sizes


def depth_of(name):
    included = re.findall(r"^include\s+['\"](.+?)['\"]", text_of(name), re.MULTILINE)
    return 1 + max(map(depth_of, included), default=-1)


def test_includes_go_two_files_deep_at_most():
    assert [name for name in FILES if depth_of(name) > 2] == []


def test_bound_names_are_told_from_comments_and_values(tmp_path):
    assert STATEMENT.findall("A = 1\nB.c = 'x = 1'\ns/D.e= %A\n") == [
        "A",
        "B.c",
        "s/D.e",
    ]


RECIPES = [name for name in FILES if name.startswith("recipes/")]


def pretraining(files, *params):
    """The settings of pre-training with further files and bindings."""
    files = ["models/decoupled.gin", *files]
    return gin_files.configure(configs.PretrainConfig, files, params)


def test_recipes_are_complete_and_fit_the_papers_settings():
    assert len(RECIPES) >= 5
    plain = pretraining([])
    for name in RECIPES:
        gin.clear_config()
        found = pretraining([name])
        assert found != plain, name
        assert found.eval_masking.masking_rate == 0.15, name


@pytest.mark.parametrize(
    ("param", "message"),
    [
        ("pretrain.whole_words = 1", "pretrain.whole_words: 1 is not of type bool"),
        ("pretrain.eval_masking_rate = 0.0", "pretrain.eval_masking_rate: 0.0 is not"),
        (
            "MaskingConfig.masking_rate = 0.4",
            "max_predictions: 80 are fewer than the 204 tokens that a masking rate of",
        ),
        ("pretrain.eval_masking_rate = 0.2", "80 are fewer than the 102 tokens"),
    ],
)
def test_refused_masking_of_pretraining(param, message):
    with pytest.raises(UserError, match=message):
        pretraining([], param)


SHORT_FIRST = "recipes/short_sequences_first.gin"


def test_a_phase_has_the_settings_of_the_last_but_for_its_own():
    params = [
        "ScheduleConfig.train_steps = 100",
        "short/PhaseConfig.steps = 90",
        "MaskingConfig.masking_rate = 0.1",
        "SamplingConfig.alpha = 0.3",
        "short/SamplingConfig.alpha = 0.7",
        "TrainingConfig.batch_size = 64",
    ]
    first, last = pretraining([SHORT_FIRST], *params).phases
    assert (first.first, first.last, last.first, last.last) == (0, 90, 90, 100)
    lengths = [phase.config.masking.sequence_length for phase in (first, last)]
    assert lengths == [128, 512]
    rates = [phase.config.masking.masking_rate for phase in (first, last)]
    assert rates == [0.1, 0.1]
    assert [p.config.sampling.alpha for p in (first, last)] == [0.7, 0.3]
    assert [p.config.training.batch_size for p in (first, last)] == [2048, 64]
    assert [phase.sequences for phase in (first, last)] == [90 * 2048, 640]


@pytest.mark.parametrize(
    ("param", "message"),
    [
        (
            "ScheduleConfig.train_steps = 1584000",
            "they have 1584000 steps, which leaves none of ScheduleConfig.train_steps",
        ),
        ("short/MaskingConfig.max_predictions = 18", "18 are fewer than the 19 tokens"),
        ("short/PhaseConfig.steps = 0", "PhaseConfig.steps: 0"),
        ("short/PhaseConfig.masking = 0.3", "PhaseConfig.masking: 0.3 is not of type"),
        (
            "pretrain.earlier_phases = @short/PhaseConfig()",
            "is not of type tuple",
        ),
        ("pretrain.earlier_phases = (128,)", "are no phases; give"),
    ],
)
def test_refused_phases_of_pretraining(param, message):
    with pytest.raises(UserError, match=message):
        pretraining([SHORT_FIRST], param)
