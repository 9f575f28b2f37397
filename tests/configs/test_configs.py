"""Each configuration accepts what can work and names the field of what cannot."""

import dataclasses
import math
import pathlib
import re
import subprocess
import sys
import typing

import pytest

from decoupled import configs
from decoupled.core.errors import UserError
from tests.refusals import refusal
from tests.tasks.own_tasks import REVIEWS

# What a bad value is added to: fields without a default, and what makes a value bad.
BASE = {
    configs.ModelConfig: dict(coupled=False, input_embedding_size=128),
    configs.SamplingConfig: dict(weights={"en": 0.2}),
    configs.PhaseConfig: dict(steps=10, batch_size=8),
    configs.OwnTaskConfig: REVIEWS,
    configs.StudyConfig: dict(
        first_rows=("a",),
        learning_rates={"a": 1e-3},
        control_rows=("a",),
        dropped_rows=(),
        most_dropped=2,
    ),
    configs.SweepConfig: dict(
        title="t",
        rows=("a", "b"),
        models={"b": ("coupled", "ModelConfig.num_layers = 2")},
        keep_layers={"a": 3},
        tasks=("xnli",),
        seeds=(0, 1),
        finetuning_runs=1,
        task_files={},
        pretraining=(),
        finetuning=(),
    ),
}
BASE[configs.SweepRoot] = dict(sweep=configs.SweepConfig(**BASE[configs.SweepConfig]))
BASE[configs.ReproductionRoot] = BASE[configs.SweepRoot] | dict(
    study=configs.StudyConfig(**BASE[configs.StudyConfig])
)
# Numbers that must be at least 0; all others must be above 0.
MAY_BE_0 = {
    configs.ModelConfig: "hidden_dropout attention_dropout",
    configs.MeshConfig: "stack_mib",
    configs.MaskingConfig: "mask_token_rate random_token_rate",
    configs.SamplingConfig: "alpha",
    configs.ParallelTextConfig: "dev_share test_share seed",
    configs.OptimizerConfig: "weight_decay beta1 beta2 clip_norm",
    configs.ScheduleConfig: "warmup_steps final_share",
    configs.TrainingConfig: "eval_every_steps eval_sequences seed",
    configs.FinetuningConfig: "classifier_dropout keep_layers warmup_fraction",
    configs.StudyConfig: "first_seeds most_dropped pieces tried_seed",
    configs.CorpusSettings: "eval_share",
    configs.VocabularySettings: "seed",
    configs.ANALYSES["masked_lm"]: "max_sequences seed",
    configs.ANALYSES["probing"]: "dropout seed",
    configs.ANALYSES["neighbours"]: "max_pairs",
}
# Numbers that these classes cannot judge: they count the layers of some model.
ANY_NUMBER = {
    configs.RetrievalConfig: "layer",
    configs.ParametersConfig: "keep_layers",
}
# Class -> field -> other values that are refused by themselves.
BAD = {
    configs.ModelConfig: dict(
        coupled=[True],
        hidden_size=[33],
        hidden_dropout=[1.0, math.nan],
        activation=["swish"],
        mlm_transform=["none"],
    ),
    configs.MeshConfig: dict(activation_dtype=["float16"], slice_dtype=["half"]),
    configs.MaskingConfig: dict(
        sequence_length=[3],
        max_predictions=[511],
        masking_rate=[1.1],
        mask_token_rate=[1.1],
        random_token_rate=[0.3],
    ),
    configs.SamplingConfig: dict(
        alpha=[1.5],
        weights=[
            {},
            {1: 0.5},
            {"en": -0.5},
            {"en": "much"},
            {"en": True},
            {"en": None},
            {"en": math.inf},
        ],
    ),
    configs.VocabularyConfig: dict(character_coverage=[0.97, 1.01], num_threads=[1025]),
    configs.ParallelTextConfig: dict(test_share=[0.96], group=["("]),
    configs.OptimizerConfig: dict(beta1=[1.0], beta2=[1.0]),
    configs.ScheduleConfig: dict(decay=["cubic"], final_share=[1.1]),
    configs.TrainingConfig: dict(gradient_accumulation=[3], seed=[2**63, 10**23]),
    configs.PlanConfig: dict(memory_share=[1.5]),
    configs.FinetuningConfig: dict(
        classifier_dropout=[1.0],
        warmup_fraction=[1.0],
        learning_rates=[2e-5, (2e-5, 0.0), ("2e-5",), (2e-5, 2e-5)],
        class_weights=["inverse"],
    ),
    configs.OwnTaskConfig: dict(
        # tests/tasks/test_own.py has the others.
        split_column=["split"],
        label=[3],
        labels=[("a", "a")],
    ),
    configs.QuestionAnsweringConfig: dict(max_answer_length=["30", None]),
    configs.RetrievalConfig: dict(
        scoring=["margin"], max_sequence_length=[2], long_sentences=["split"]
    ),
    configs.SweepConfig: dict(
        rows=[(), ("a", "a"), ("../a",), ("",)],
        models=[
            *({"b": "coupled"}, {"b": ()}, {"b": ("../a",)}, {"b": ("a", 1)}),
            {"b": ("a", "TrainingConfig.seed = 1")},
        ],
        keep_layers=[{"c": 1}, {"a": "1"}, {"a": -3}],
        tasks=[(1,), ("..",), ("/tmp/a",)],
        seeds=[(0, 0), (0, -1)],
        task_files=[{"xnli": 1}],
        pretraining=[
            *((1,), ("A = 1\nB = 1",), ("A = 1\r",)),
            *(("ModelConfig.num_layers = 2",), (" TrainingConfig.seed=1",)),
        ],
        finetuning=[
            *(("A = 1\n",), ("A = 1\u2028B = 1",), ("TrainingConfig.seed = 1",)),
            ("xnli/FinetuningConfig.keep_layers = 2",),
        ],
    ),
    configs.StudyConfig: dict(
        learning_rates=[{"a": 0.0}],
        control=["mean"],
        settings=[{"a": "ScheduleConfig.train_steps = 1"}],
        claims=[{"3": "S: a - b > 0"}],
    ),
    configs.PretrainConfig: dict(
        eval_masking_rate=[1.1], earlier_phases=[(128,), configs.PhaseConfig(9, 8)]
    ),
    configs.CorpusSettings: dict(
        eval_share=[1.0],
        text_column=[""],
        language_column=[""],
        language_values=[{"pt": "por"}],
        dev_share=[0.8],
    ),
    configs.ANALYSES["masked_lm"]: dict(smoothing=[math.inf, math.nan, True]),
    configs.ANALYSES["probing"]: dict(
        max_tokens=[2], dropout=[1.0], clip_norm=[math.inf]
    ),
}
KINDS = [
    *(kind for kind in vars(configs).values() if hasattr(kind, "gin_name")),
    *configs.ANALYSES.values(),
]
# Values that are refused together, and what the message names.
BAD_TOGETHER = [
    (
        configs.CorpusSettings,
        dict(language_column="a", language_values={"pt": ["por"]}),
        "language_values",
    ),
    (configs.ScheduleConfig, dict(train_steps=9, warmup_steps=4, decay_steps=6), "dec"),
    (configs.ScheduleConfig, dict(decay="constant", decay_steps=5), "decay_steps"),
    (configs.ScheduleConfig, dict(decay="constant", final_share=0.1), "final_share"),
]


def made(kind_, **changes):
    return kind_(**BASE.get(kind_, {}) | changes)


def bad_values(kind):
    """(Field, a value that is refused) for every field."""
    for field in dataclasses.fields(kind):
        types = typing.get_args(field.type) or (field.type,)
        yield field.name, 1.5 if str in types else "x"
        if bool in types:
            yield field.name, 1
        if int in types or float in types:
            yield field.name, True
        if int in types and float not in types:
            yield field.name, 2.0
        numbers = [number for number in (int, float) if number in types]
        if numbers and field.name not in ANY_NUMBER.get(kind, "").split():
            lowest = -1 if field.name in MAY_BE_0.get(kind, "").split() else 0
            yield field.name, numbers[-1](lowest)
        for value in BAD.get(kind, {}).get(field.name, ()):
            yield field.name, value


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.gin_name)
def test_impossible_values_are_refused_by_the_name_of_the_field(kind):
    made(kind)
    for field, value in bad_values(kind):
        message = refusal(made, kind, **{field: value})
        assert message.startswith(kind.gin_name), message
        assert field in message, (value, message)


@pytest.mark.parametrize("kind, changes, field", BAD_TOGETHER)
def test_values_that_do_not_go_together_are_refused(kind, changes, field):
    message = refusal(made, kind, **changes)
    assert message.startswith(kind.gin_name) and field in message


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_what_must_be_positive_is_said_for_values_that_are_not_finite(value):
    message = refusal(configs.OptimizerConfig, epsilon=float(value))
    assert message == (
        f"OptimizerConfig.epsilon: {float(value)} is not a finite number above 0"
    )


@pytest.mark.parametrize("value", [-1, float("inf"), float("nan")])
def test_what_must_not_be_negative_is_said_for_values_that_are_not_finite(value):
    message = refusal(configs.OptimizerConfig, clip_norm=float(value))
    assert f"clip_norm: {float(value)} is not a finite number of at least 0" in message


def test_coupled_with_equal_widths_is_accepted():
    made(configs.ModelConfig, coupled=True, output_embedding_size=128)


def test_a_saved_model_may_lack_only_what_is_off_by_default():
    sizes = vars(made(configs.ModelConfig))
    for name, value in sizes.items():
        others = {other: x for other, x in sizes.items() if other != name}
        if name in ("vocab_size", "hidden_size", "coupled", "activation"):
            with pytest.raises(KeyError, match=name):
                configs.saved_model(others)
        elif not getattr(configs.ModelConfig(), name):
            assert configs.saved_model(others) == made(configs.ModelConfig), value
    with pytest.raises(TypeError, match="later"):
        configs.saved_model({**sizes, "later": 1})


def test_a_saved_model_may_have_a_setting_that_is_gone_if_it_was_off():
    gone, model = "output_embedding_rank", made(configs.ModelConfig)
    assert configs.saved_model({**vars(model), gone: 0}) == model
    message = refusal(configs.saved_model, {**vars(model), gone: 128})
    assert message == (
        f"ModelConfig.{gone} was removed, and this model has 128; only the version "
        "that trained it can read it"
    )


def shown(field):
    """A field in the table: its name and default, or the class of other settings."""
    if field.default_factory is dict:
        return f"`{field.name} = {{}}`"
    if field.default_factory is not dataclasses.MISSING:
        # None is read, too, as runs of earlier versions have recorded it.
        kind, *_ = typing.get_args(field.type) or (field.type,)
        return f"`{kind.__name__}`"
    if field.default is dataclasses.MISSING:
        return f"`{field.name}`"
    return f"`{field.name} = {field.default!r}`"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.gin_name)
def test_every_configuration_is_documented_with_all_its_fields(kind):
    page = pathlib.Path(__file__).parent.parent.parent / "docs" / "configuration.md"
    first = kind.__doc__.splitlines()[0]
    fields = ", ".join(map(shown, dataclasses.fields(kind)))
    others = getattr(kind, "DEFAULTS", {}).items()
    fields += "".join(f", `{name} = {value!r}`" for name, value in others)
    row = f"| `{kind.gin_name}` | {first} | {fields} |"
    assert row in page.read_text(encoding="utf-8").splitlines()


def test_configs_load_no_tensorflow():
    code = "import sys, decoupled.configs; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_rows_of_a_reproduction_are_those_of_its_sweep():
    rates = dict(learning_rates={"a": 1e-3, "b": 1e-3})
    study = made(configs.StudyConfig, **rates)
    made(configs.ReproductionRoot, study=study).check()
    for field, value, message in [
        ("control_rows", ("c",), "StudyConfig.control_rows: c are not among"),
        ("learning_rates", {"a": 1e-3}, "StudyConfig.learning_rates: has none for b"),
    ]:
        study = made(configs.StudyConfig, **rates | {field: value})
        with pytest.raises(UserError, match=message):
            made(configs.ReproductionRoot, study=study).check()


@pytest.mark.parametrize(
    "setting, owner",
    [
        ("MeshConfig.activation_dtype = 'float32'", "reproduction.json of --work_dir"),
        ("OptimizerConfig.learning_rate = 1e-3", "StudyConfig.learning_rates"),
        ("TrainingConfig.seed = 3", "SweepConfig.seeds"),
        ("ModelConfig.num_layers = 3", "SweepConfig.models"),
    ],
)
def test_settings_that_a_study_decides_itself_are_refused(setting, owner):
    study = made(configs.StudyConfig, learning_rates={"a": 1e-3, "b": 1e-3})
    message = f"{re.escape(repr(setting))} belongs in {owner}"
    with pytest.raises(UserError, match=f"StudyConfig.settings: {message}"):
        changed_study = dataclasses.replace(study, settings={"a": (setting,)})
        made(configs.ReproductionRoot, study=changed_study).check()
    with pytest.raises(UserError, match=f"SweepConfig.pretraining: {message}"):
        sweep = made(configs.SweepConfig, pretraining=(setting,))
        made(configs.ReproductionRoot, study=study, sweep=sweep).check()


def steps(train_steps, warmup_steps=0, decay="linear"):
    return configs.ScheduleConfig(train_steps, warmup_steps, decay)


SAVES = "TrainingConfig.save_checkpoints_steps = 50 has no effect: the run has {} steps"


@pytest.mark.parametrize(
    "schedule, changes, evaluating, fraction, said",
    [
        (steps(100, 99), {}, True, 0.0, []),
        (steps(50), {"eval_every_steps": 50}, True, 0.1, ["warmup_fraction = 0.1 has"]),
        (steps(50, 1), {}, True, 0.1, []),
        (steps(100, 200), {}, True, 0.0, ["no more than 50% of its peak, and there"]),
        (steps(100, 100), {}, True, 0.0, ["no more than 100% of its peak, and there"]),
        (steps(100, 400, "constant"), {}, True, 0.0, ["no more than 25% of its peak"]),
        (steps(49), {}, True, 0.0, [SAVES.format(49)]),
        (steps(60), {"eval_every_steps": 61}, True, 0.0, ["eval_every_steps = 61 has"]),
        (steps(60), {"eval_every_steps": 61}, False, 0.0, ["while this run trains"]),
        (steps(49), {"eval_every_steps": 7}, True, 0.0, ["TrainingConfig.save"]),
    ],
)
def test_settings_that_a_run_cannot_follow_are_said(
    schedule, changes, evaluating, fraction, said
):
    training = configs.TrainingConfig(**{"save_checkpoints_steps": 50, **changes})
    found = configs.without_effect(schedule, training, evaluating, fraction)
    assert len(found) == len(said)
    assert all(part in one for part, one in zip(said, found, strict=True)), found
