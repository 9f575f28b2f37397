"""gin files build a configuration, or one line says what is wrong and where."""

import dataclasses
import os
from typing import ClassVar

import gin
import pytest

from decoupled import configs
from decoupled.configs.checks import Settings, bound, configurable
from decoupled.core.errors import UserError
from decoupled.launch import gin_files
from tests.refusals import refusal


@configurable("example_root")
@dataclasses.dataclass(frozen=True)
class Example(Settings):
    DEFAULTS: ClassVar = {"SamplingConfig.alpha": 0.4}

    sampling: configs.SamplingConfig = bound(configs.SamplingConfig)
    phase: configs.PhaseConfig | None = None


GOOD = """
ALPHA = 0.5
SamplingConfig.alpha = %ALPHA
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a gin file into the current, empty folder and returns its name."""
    monkeypatch.chdir(tmp_path)

    def write_file(text, name="good.gin"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return name

    return write_file


def configure(files, params=(), prefixes=()):
    return gin_files.configure(Example, files, params, prefixes)


def test_files_build_the_dataclasses(write):
    assert configure([write(GOOD)]) == Example(configs.SamplingConfig(alpha=0.5))


def test_a_command_may_have_another_default_than_the_class(write):
    assert configs.SamplingConfig().alpha == 0.5
    assert configure([]).sampling.alpha == 0.4
    assert "SamplingConfig.alpha = 0.4\n" in gin_files.settings_text()


def test_later_files_win_and_single_bindings_win_over_files(write):
    files = [write(GOOD), write("ALPHA = 0.25", "b.gin")]
    assert configure(files).sampling.alpha == 0.25
    assert configure(files, ["ALPHA = 0.75", "ALPHA = 1.0"]).sampling.alpha == 1.0


def test_bindings_hold_for_their_configuration_alone(write):
    configure([write(GOOD)])
    assert gin.config_str() == ""
    assert configure([]).sampling.alpha == 0.4
    assert configs.PretrainConfig().sampling.alpha == 0.5


def test_defaults_follow_the_scope_of_what_holds_them(write):
    params = [
        "example_root.phase = @first/PhaseConfig()",
        "first/PhaseConfig.steps = 3",
        "PhaseConfig.batch_size = 2",
        "first/SamplingConfig.alpha = 0.1",
        "MaskingConfig.max_predictions = 9",
    ]
    config = configure([], params)
    alphas = [part.sampling.alpha for part in (config, config.phase)]
    assert alphas == [0.4, 0.1]
    assert config.phase.masking.max_predictions == 9
    text = write(gin_files.settings_text(), "again.gin")
    assert configure([text]) == config


def test_a_macro_whose_only_use_is_overridden_is_no_mistake(write):
    config = configure([write(GOOD)], ["SamplingConfig.alpha = 0.1"])
    assert config.sampling.alpha == 0.1


def test_used_text_builds_the_same_configuration(write):
    first = configure([write(GOOD)])
    assert configure([write(gin_files.settings_text(), "again.gin")]) == first


@pytest.mark.parametrize(
    "root, removed",
    [
        (configs.PretrainConfig, "TrainingConfig.softmax_block_size = 0"),
        (configs.PretrainConfig, "ModelConfig.output_embedding_rank = 0"),
        (configs.PretrainConfig, "SamplingConfig.max_epochs = None"),
        (configs.FinetuneConfig, "OptimizerConfig.name = 'adamw'"),
        (configs.FinetuneConfig, "TrainingConfig.label_smoothing = 0.0"),
        (configs.FinetuneConfig, "FinetuningConfig.pack_sequences = True"),
        (configs.FinetuneConfig, "FinetuningConfig.group_by_length = False"),
        (configs.CorpusSettings, "ParallelTextConfig.translations = None"),
        (configs.PretrainConfig, "pretrain.cluster = @ClusterConfig()"),
        (
            configs.FinetuneConfig,
            "ClusterConfig.workers = ()\nClusterConfig.patience_seconds = 9.0",
        ),
    ],
)
def test_the_record_of_an_earlier_run_is_read(write, root, removed):
    """It has settings that are gone, with values that changed nothing."""
    now = gin_files.configure(root, [], [])
    record = write(f"{gin_files.settings_text()}\n{removed}\n", "config.1.gin")
    assert gin_files.configure(root, [record], []) == now


def test_includes_are_read_in_their_place(write):
    write(GOOD, "deep/base.gin")
    before = write("ALPHA = 0.1\ninclude 'deep/base.gin'  # with a remark\n", "a.gin")
    after = write('include "deep/base.gin"\nALPHA = 0.1\n', "b.gin")
    assert configure([before]).sampling.alpha == 0.5
    assert configure([after]).sampling.alpha == 0.1


def test_blocks_are_read(write):
    block = "SamplingConfig:\n  alpha = 1\n  weights = {'en': 0.5}\n"
    sampling = configure([write(GOOD), write(block, "block.gin")]).sampling
    assert (sampling.alpha, sampling.weights) == (1, {"en": 0.5})


def test_files_are_found_here_then_below_prefixes_then_in_the_package(write):
    here = write(GOOD)
    write(GOOD, "prefix/good.gin")
    write(GOOD, "prefix/other.gin")
    assert gin_files.find_file(here, ["prefix"]) == "good.gin"
    assert gin_files.find_file("other.gin", ["prefix"]) == "prefix/other.gin"
    packaged = gin_files.find_file("tasks/rembert.gin")
    assert packaged == os.path.join(gin_files.packaged_folder(), "tasks", "rembert.gin")


def test_a_folder_named_like_that_of_the_file_is_no_obstacle(write):
    write("", "runs/notes.txt")
    assert os.path.isabs(gin_files.find_file("runs/demo_pretrain.gin"))


def test_a_missing_file_is_reported_with_the_search_path_and_near_names(write):
    message = refusal(configure, ["runs/demo_pretran.gin"], [], ["/p"])
    assert message.startswith("runs/demo_pretran.gin: no such gin file in ., /p, /")
    assert "did you mean runs/demo_pretrain.gin" in message


@pytest.mark.parametrize(
    "name, advice",
    [
        ("models/base.gin", "leave it out"),
        ("runs/pretrain.gin", "leave it out"),
        ("runs/analyze_neighbours.gin", "leave it out"),
        ("models/english_e_out_128.gin", "models/e_out_128.gin and ModelConfig.vocab"),
        ("models/english_additional_layers_15.gin", "ModelConfig.num_layers = 15"),
        ("models/mini_e_small.gin", "settings of e_small in sweeps/reproduce.gin"),
        ("models/demo_base.gin", "give models/demo_coupled.gin"),
        ("models/rembert_fresh_output.gin", "models/rembert.gin and ModelConfig.outp"),
        ("models/e_out_768_rank_128.gin", "give models/e_out_128.gin, whose sco"),
        ("gin/tasks/xnli.gin", "tasks/table_10.gin has the settings of xnli"),
        ("../checkout/gin/tasks/tatoeba.gin", "tasks/retrieval.gin"),
        ("tasks/rembert_panx.gin", "tasks/rembert.gin has the settings of panx"),
        ("tasks/bucc2018.gin", "tasks/retrieval.gin has the settings of bucc2018"),
        ("tasks/qa.gin", "its settings are defaults, but for the length"),
    ],
)
def test_a_file_that_is_gone_is_refused_with_what_to_give_now(write, name, advice):
    message = refusal(configure, [write(f"include {name!r}", "a.gin")])
    assert message.startswith(f"a.gin:1: {name}: is gone (CHANGELOG.md); ")
    assert advice in message


def test_an_absolute_path_is_searched_nowhere_else(tmp_path):
    path = str(tmp_path / "x.gin")
    expected = f"{path}: no such gin file"
    assert refusal(configure, [path]) == expected


def test_a_missing_include_is_reported_with_the_line(write):
    message = refusal(configure, [write("\n\ninclude 'no.gin'\n", "a.gin")])
    assert message.startswith("a.gin:3: no.gin: no such gin file")


def test_files_that_include_each_other_are_refused(write):
    write("include 'b.gin'", "a.gin")
    write("include 'a.gin'", "b.gin")
    assert refusal(configure, ["a.gin"]).startswith("b.gin: includes a.gin")


@pytest.mark.parametrize(
    "text,message",
    [
        (
            "SamplngConfig.alpha = 1",
            "a.gin:2: no configurable named 'SamplngConfig'; did ",
        ),
        (
            "SamplingConfig.alpa = 1",
            "a.gin:2: SamplingConfig has no parameter 'alpa'; ",
        ),
        ("example_root.x = 1", "a.gin:2: example_root has no parameter 'x'; Known: "),
        ("example_root.phase = @Mask()", "a.gin:2: no configurable named 'Mask'; "),
        ("X == 2", "a.gin:2: Couldn't parse statement"),
        ("X = [1,", "a.gin:"),
        ("X = 'a", "a.gin:2: "),
        ("  import os", "a.gin:2: 'import os' would run code"),
        ("from __gin__ import dynamic_registration", "a.gin:2: 'from __gin__ "),
    ],
)
def test_mistakes_in_a_file_are_reported_with_the_line(write, text, message):
    result = refusal(configure, [write(GOOD), write(f"# first\n{text}\n", "a.gin")])
    assert result.startswith(message)


def test_lines_after_an_include_keep_their_numbers(write):
    write(GOOD)
    text = "include 'good.gin'\n\nSamplingConfig.alpha = 1\nSamplingConfig.x = 1\n"
    assert refusal(configure, [write(text, "a.gin")]).startswith("a.gin:4: ")


@pytest.mark.parametrize(
    "text,message",
    [
        (
            "TrainingConfig.train_steps = 1",
            "a.gin:1: TrainingConfig has no parameter 'train_steps'; "
            "ScheduleConfig has one",
        ),
        (
            "a/ModelConfig:\n  batch_size = 1",
            "a.gin:2: ModelConfig has no parameter 'batch_size'; RetrievalConfig, "
            "PhaseConfig and TrainingConfig have one",
        ),
        (
            "example_root.seed = 1",
            "a.gin:1: example_root has no parameter 'seed'; ParallelTextConfig and "
            "TrainingConfig have one",
        ),
    ],
)
def test_a_parameter_of_another_class_is_reported_with_the_class(write, text, message):
    assert refusal(configure, [write(text, "a.gin")]) == message


@pytest.mark.parametrize("value", ["{'a': 1, 'a': 2}", "({'a': {'a': 1}, 'a': 2},)"])
def test_a_key_that_occurs_twice_is_refused(write, value):
    message = refusal(configure, [write(f"B = {{'a': {{'a': 1}}}}\nA = {value}")])
    assert message.startswith("good.gin:2: the key 'a' occurs twice in ")


@pytest.mark.parametrize("word", ["true", "adamw", "none"])
def test_a_word_without_quotes_is_reported(write, word):
    message = refusal(configure, [write(f"ALPHA = {word}", "a.gin")])
    assert message == f"a.gin:1: {word!r} is no value; a text needs quotes"


def test_a_setting_of_the_runs_of_a_sweep_is_reported_where_it_belongs():
    files = ["sweeps/mini.gin", "sweeps/table4.gin"]
    params = ["ScheduleConfig.train_steps = 3"]
    message = refusal(gin_files.configure, configs.SweepRoot, files, params)
    assert message == (
        "gin: ScheduleConfig.train_steps: set, but sweep has no such setting; the "
        "runs of a sweep take theirs from SweepConfig.pretraining and "
        "SweepConfig.finetuning: add it there, as a string"
    )


def test_a_task_of_ones_own_that_is_not_bound_is_reported():
    params = ["OwnTaskConfig.name = 'topics'"]
    message = refusal(gin_files.configure, configs.FinetuneConfig, [], params)
    assert message.endswith("for --task=own, add finetune.own_task = @OwnTaskConfig()")


def test_known_names_are_listed(write):
    message = refusal(configure, [write("MaskingConfig.mask_rate = 1")])
    assert "did you mean masking_rate" in message
    message = refusal(configure, [write("x.y = 1")])
    known = message.split("Known: ")[1].split(", ")
    assert {"example_root", "ModelConfig", "MeshConfig"} <= set(known)


@pytest.mark.parametrize(
    "param,message",
    [
        (
            "SamplingConfig.a = 1",
            "--gin_param='SamplingConfig.a = 1': SamplingConfig has ",
        ),
        (
            "MeshConfig.embedding_lookup = 'one_hot'",
            "--gin_param=\"MeshConfig.embedding_lookup = 'one_hot'\": MeshConfig."
            "embedding_lookup was removed: rows of tables are always copied; remove it",
        ),
        (
            "TrainingConfig.softmax_block_size = 512",
            "--gin_param='TrainingConfig.softmax_block_size = 512': TrainingConfig."
            "softmax_block_size was removed: logits are always computed as a whole; ",
        ),
        (
            "ModelConfig.output_embedding_rank = 8",
            "--gin_param='ModelConfig.output_embedding_rank = 8': ModelConfig."
            "output_embedding_rank was removed: the output embedding is one matrix; ",
        ),
        (
            "OptimizerConfig.name = 'adafactor'",
            "--gin_param=\"OptimizerConfig.name = 'adafactor'\": OptimizerConfig.name "
            "was removed: every model is trained with AdamW; remove it",
        ),
        (
            "TrainingConfig.label_smoothing = 0.1",
            "--gin_param='TrainingConfig.label_smoothing = 0.1': TrainingConfig."
            "label_smoothing was removed: the loss is the plain cross-entropy, as in ",
        ),
        (
            "ClusterConfig.workers = ('a:1', 'b:1')",
            "--gin_param=\"ClusterConfig.workers = ('a:1', 'b:1')\": ClusterConfig was "
            "removed: with --accelerator, the flags --coordinator",
        ),
        ("SamplingConfig.alpha =", "--gin_param='SamplingConfig.alpha =': Unable to "),
        ("include 'no.gin'", "--gin_param=\"include 'no.gin'\": must be one setting, "),
        ("SamplingConfig.alpha = 3.0", "SamplingConfig.alpha: 3.0 is not in [0, 1]"),
        ("SamplingConfig.alpha = %BETA", "gin: %BETA is used but defined nowhere"),
        ("ALFA = 1", "gin: ALFA: set, but example_root has no such setting"),
        (
            "evall/SamplingConfig.alpha = 1",
            "gin: evall/SamplingConfig.alpha: set, but ",
        ),
        ("MaskingConfig.masking_rate = 0.1", "gin: MaskingConfig.masking_rate: set, "),
        (
            "example_root.sampling = @SamplingConfig",
            "--gin_param='example_root.sampling = @SamplingConfig': @SamplingConfig "
            "names a class; write @SamplingConfig()",
        ),
        (
            "example_root.sampling = 0.5",
            "example_root.sampling: 0.5 is not of type SamplingConfig",
        ),
    ],
)
def test_mistakes_in_a_single_binding_name_it(write, param, message):
    assert refusal(configure, [write(GOOD)], [param]).startswith(message)


def test_missing_values_are_named():
    message = refusal(configure, [], ["example_root.phase = @PhaseConfig()"])
    assert message.startswith("gin: PhaseConfig needs steps, batch_size; give a --gin_")


def test_a_file_that_is_not_utf8_is_named(write, tmp_path):
    (tmp_path / "a.gin").write_bytes(b"\xff")
    assert refusal(configure, ["a.gin"]).startswith("a.gin: not UTF-8 at byte 0")


@configurable()
@dataclasses.dataclass
class Defective(Settings):
    def __post_init__(self):
        raise TypeError("unsupported operand")


def test_a_defect_in_a_root_keeps_its_own_exception():
    with pytest.raises(TypeError, match="unsupported operand"):
        gin_files.configure(Defective, [], [])


def test_a_line_may_count_for_one_task(write):
    text = "a/SamplingConfig.alpha = 0.1\nb/SamplingConfig.alpha = 0.2\n"
    path, tasks = write(text), ("a", "b")
    for task, alpha in (("a", 0.1), ("b", 0.2)):
        config = gin_files.configure(Example, [path], [], task=task, tasks=tasks)
        assert config.sampling.alpha == alpha
        # What comes later overrides it.
        params = ["SamplingConfig.alpha = 0.3"]
        config = gin_files.configure(Example, [path], params, task=task, tasks=tasks)
        assert config.sampling.alpha == 0.3
    for wrong in ("c/SamplingConfig.alpha = 0.1\n", "b/SamplingConfig.alhpa = 0.1\n"):
        with pytest.raises(UserError, match="c/SamplingConfig.alpha|'alhpa'"):
            path = write(wrong)
            gin_files.configure(Example, [path], [], task="a", tasks=tasks)
