"""Each configuration accepts what can work and names the field of what cannot."""

import dataclasses
import math
import pathlib
import subprocess
import sys
import typing

import pytest

from decoupled import configs
from decoupled.core.errors import UserError

# What a bad value is added to: fields without a default, and what makes a value bad.
BASE = {
    configs.ModelConfig: dict(coupled=False, input_embedding_size=128),
    configs.SamplingConfig: dict(weights={"en": 0.2}, max_epochs={"*": 10, "en": 2.5}),
    configs.PhaseConfig: dict(steps=10, batch_size=8),
    configs.OwnTaskConfig: dict(
        name="reviews",
        kind="classification",
        files="{split}-{language}.tsv",
        texts=("text",),
        label="label",
        metric="accuracy",
    ),
    configs.StudyConfig: dict(
        first_rows=("a",),
        learning_rates={"a": 1e-3},
        control_rows=("a",),
        dropped_rows=(),
        most_dropped=2,
        secondary_tasks=("books",),
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
# Class -> field -> values that are refused by themselves.
BAD = {
    configs.ModelConfig: dict(
        vocab_size=[0],
        input_embedding_size=[-1],
        project_equal_widths=[1],
        output_embedding_size=[0],
        output_embedding_rank=[-1, 768],
        coupled=[True, 1],
        hidden_size=[33],
        num_layers=[0, 2.0],
        num_heads=[0],
        head_size=[0],
        intermediate_size=[0],
        max_positions=[0],
        type_vocab_size=[0],
        hidden_dropout=[1.0, float("nan")],
        attention_dropout=[-0.1],
        activation=["swish"],
        layer_norm_epsilon=[0.0],
        initializer_range=[0.0],
        mlm_transform=["none"],
    ),
    configs.MeshConfig: dict(
        mesh_shape=[1],
        layout_rules=[None],
        activation_dtype=["float16"],
        embedding_lookup=["onehot"],
        slice_dtype=["float16"],
        stack_mib=[-1],
    ),
    configs.MaskingConfig: dict(
        sequence_length=[3, 0],
        max_predictions=[511, 0],
        masking_rate=[0.0, 1.1],
        mask_token_rate=[1.1],
        random_token_rate=[-0.1, 0.3],
    ),
    configs.SamplingConfig: dict(
        alpha=[1.5, "0.5"],
        weights=[0.5, {}, {1: 0.5}, {"en": -0.5}, {"en": "much"}, {"*": 0.5}],
        min_epochs=[-1, True, 20.0, {"en": 3}],
        max_epochs=[float("inf"), {"en": None}],
    ),
    configs.VocabularyConfig: dict(
        vocab_size=[0],
        character_coverage=[0.0, 1.01],
        byte_fallback=[0],
        max_sentences=[0],
        max_bytes=[0, 2000000000.0],
        num_threads=[0, 1025],
    ),
    configs.ParallelTextConfig: dict(
        dev_share=[-0.1],
        test_share=[0.96],
        seed=[-1],
        group=["("],
        max_pairs=[0],
        max_train_examples=[0],
        max_test_examples=[0],
    ),
    configs.OptimizerConfig: dict(
        name=["sgd"],
        learning_rate=[0.0],
        weight_decay=[-0.1],
        beta1=[1.0],
        beta2=[1.0],
        epsilon=[0.0],
        clip_norm=[-1.0],
    ),
    configs.ScheduleConfig: dict(
        train_steps=[0, 10.5],
        warmup_steps=[-1],
        decay=["cubic"],
        decay_steps=[0],
        final_share=[1.1],
    ),
    configs.TrainingConfig: dict(
        batch_size=[0],
        gradient_accumulation=[3, 0],
        save_checkpoints_steps=[0],
        keep_checkpoint_max=[0],
        log_steps=[0],
        recompute_layers=[1],
        iterations_per_loop=[0],
        eval_every_steps=[-1],
        eval_batch_size=[0],
        eval_sequences=[-1],
        seed=[-1],
        label_smoothing=[1.0, -0.1],
    ),
    configs.ClusterConfig: dict(
        workers=[["a:1"], ("a:1", 2)],
        start_seconds=[0.0],
        patience_seconds=["30"],
        accept_open_ports=["no"],
    ),
    configs.PhaseConfig: dict(
        steps=[0],
        batch_size=[-8],
        masking=[None],
        sampling=[0.5],
    ),
    configs.FinetuningConfig: dict(
        num_epochs=[0.0],
        max_sequence_length=[0],
        classifier_dropout=[1.0],
        keep_layers=[-1],
        freeze_input_embedding=["no"],
        warmup_fraction=[1.0],
        learning_rates=[2e-05, [2e-05], (2e-05, 0.0), ("2e-5",), (2e-05, 2e-05)],
        class_weights=["inverse"],
    ),
    configs.OwnTaskConfig: dict(
        name=["a/b"],
        kind=["ranking"],
        files=["all.tsv"],
        splits=[("train",)],
        split_column=["split"],
        training_languages=[()],
        texts=[()],
        label=[3],
        labels=[("a", "a")],
        metric=["f1"],
    ),
    configs.QuestionAnsweringConfig: dict(
        max_question_length=[0],
        doc_stride=[0, 64.5],
        max_answer_length=[-1, "30", None],
        n_best=["20"],
    ),
    configs.RetrievalConfig: dict(
        layer=[1.0],
        pool_special_tokens=[1],
        centre=["yes"],
        scoring=["margin"],
        num_neighbours=[0],
        max_sequence_length=[2, 0],
        long_sentences=["split"],
        batch_size=[0],
    ),
    configs.SweepConfig: dict(
        title=[1],
        rows=[(), ("a", "a"), ("../a",), ("",)],
        models=[{"b": "coupled"}, {"b": ()}, {"b": ("../a",)}, {"b": ("a", 1)}],
        keep_layers=[{"c": 1}, {"a": "1"}],
        tasks=[(1,), ("..",), ("/tmp/a",)],
        seeds=[(0, 0)],
        finetuning_runs=[0],
        task_files=[(), {"xnli": 1}],
        pretraining=[(1,), ("A = 1\nB = 1",), ("A = 1\r",)],
        finetuning=[("A = 1\n",), ("A = 1\u2028B = 1",), "x"],
        warm_processes=[1],
    ),
    configs.ScaleConfig: dict(
        width_divisor=[0],
        head_size_divisor=[1.5],
        depth_divisor=[-1],
    ),
    configs.StudyConfig: dict(
        learning_rates=[{"a": 0.0}],
        most_dropped=[-1],
        first_rows=["a"],
        control_rows=["a"],
        dropped_rows=["a"],
        secondary_tasks=["a"],
    ),
    configs.PlanConfig: dict(
        efficiency=[0.0],
        memory_share=[1.5],
    ),
    configs.PretrainConfig: dict(
        model=[None],
        mesh=["all:1"],
        masking=[0.15],
        sampling=[0.5],
        optimizer=["adamw"],
        schedule=[100],
        training=[32],
        cluster=[()],
        whole_words=[1],
        eval_masking_rate=[0.0, 1.1, "0.15"],
        earlier_phases=[(128,), configs.PhaseConfig(9, 8)],
    ),
    configs.FinetuneConfig: dict(
        finetuning=[None],
        mesh=["all:1"],
        optimizer=["adamw"],
        training=[32],
        question_answering=["auto"],
        cluster=[None],
        own_task=["topics"],
    ),
    configs.RetrieveConfig: dict(retrieval=[None]),
    configs.CorpusSettings: dict(
        eval_share=[1.0, -0.1],
        min_characters=[0],
        split_json=[1],
        split_text=[None],
        drop_duplicates=["no"],
        part_bytes=[0],
        max_parts=[0],
        text_column=["", None],
        language_column=["", 3],
        language_values=["por", {"pt": "por"}],
        dev_share=[0.0, 0.8],
        test_share=[0.0],
        min_label_messages=[0],
        min_language_examples=[0],
        parallel=[None],
    ),
    configs.VocabularySettings: dict(
        vocabulary=[8000], sampling=[0.5], seed=[-1], report_sentences=[0]
    ),
    configs.SweepRoot: dict(sweep=[None], scale=[8]),
    configs.ReproductionRoot: dict(sweep=[None], study=[None]),
    configs.PlanSettings: dict(run=[None], config=[None]),
    configs.ParametersConfig: dict(model=[None], keep_layers=[1.5]),
    configs.ANALYSES["word_translation"]: dict(
        whole_word_share=[-0.1, 1.5, "0.5"],
        min_count=[0, 4],
        min_dice=[1.1],
        min_candidate_count=[0, 1.5, 21],
        centre=[1],
    ),
    configs.ANALYSES["geometry"]: dict(
        masking=[None],
        sequences=[0],
        batch_size=[0],
        gradients=[0],
        seed=[-1],
    ),
    configs.ANALYSES["masked_lm"]: dict(
        masking=[None],
        max_sequences=[-1],
        smoothing=[0, float("inf"), float("nan"), True],
        batch_size=[0, 2.0],
        seed=[-1],
    ),
    configs.ANALYSES["probing"]: dict(
        max_tokens=[2, "all"],
        projection_size=[0],
        hidden_size=[0],
        dropout=[1.0, -0.1],
        learning_rate=[0.0],
        clip_norm=[float("inf")],
        batch_size=[0],
        train_steps=[0, 1.5],
        eval_every_steps=[0],
        halve_after=[0],
        stop_after=[0],
        seed=[-1],
    ),
    configs.ANALYSES["neighbours"]: dict(retrieval=[None], max_pairs=[-1, 2.0]),
}
# Values that are refused together, and what the message names.
BAD_TOGETHER = [
    (
        configs.ModelConfig,
        dict(coupled=True, output_embedding_size=128, output_embedding_rank=8),
        "output_embedding_rank",
    ),
    (
        configs.SamplingConfig,
        dict(weights={"sw": 0}, min_epochs={"sw": 1}),
        "min_epochs",
    ),
    (configs.OptimizerConfig, dict(name="adafactor"), "adafactor"),
    (configs.ScheduleConfig, dict(train_steps=9, warmup_steps=4, decay_steps=6), "dec"),
    (configs.ScheduleConfig, dict(decay="constant", decay_steps=5), "decay_steps"),
    (configs.ScheduleConfig, dict(decay="constant", final_share=0.1), "final_share"),
]


def made(kind_, **changes):
    return kind_(**BASE.get(kind_, {}) | changes)


def refusal(kind, changes):
    with pytest.raises(UserError) as caught:
        made(kind, **changes)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("kind", BAD, ids=lambda kind: kind.__name__)
def test_impossible_values_are_refused_by_the_name_of_the_field(kind):
    made(kind)
    for field, values in BAD[kind].items():
        for value in values:
            message = refusal(kind, {field: value})
            assert message.startswith(kind.gin_name), message
            assert field in message, (value, message)


@pytest.mark.parametrize("kind, changes, field", BAD_TOGETHER)
def test_values_that_do_not_go_together_are_refused(kind, changes, field):
    message = refusal(kind, changes)
    assert message.startswith(kind.gin_name) and field in message


def test_every_field_of_every_configuration_has_a_refusal():
    kinds = {kind for kind in vars(configs).values() if hasattr(kind, "gin_name")}
    assert kinds | set(configs.ANALYSES.values()) == set(BAD)
    for kind in BAD:
        assert {field.name for field in dataclasses.fields(kind)} == set(BAD[kind])


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_what_must_be_positive_is_said_for_values_that_are_not_finite(value):
    message = refusal(configs.OptimizerConfig, {"epsilon": float(value)})
    assert message == (
        f"OptimizerConfig.epsilon: {float(value)} is not a finite number above 0"
    )


@pytest.mark.parametrize("value", [-1, float("inf"), float("nan")])
def test_what_must_not_be_negative_is_said_for_values_that_are_not_finite(value):
    message = refusal(configs.OptimizerConfig, {"clip_norm": float(value)})
    assert f"clip_norm: {float(value)} is not a finite number of at least 0" in message


def test_coupled_with_equal_widths_is_accepted():
    made(configs.ModelConfig, coupled=True, output_embedding_size=128)


def test_adafactor_without_momentum_and_decay_is_accepted():
    configs.OptimizerConfig(name="adafactor", beta1=0.0, weight_decay=0.0)


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


def test_epochs_of_a_language():
    some = made(configs.SamplingConfig)
    assert [some.epochs_of(name) for name in ("en", "sw")] == [(0, 2.5), (0, 10)]
    limited = configs.SamplingConfig(min_epochs=1, max_epochs={"en": 3})
    assert limited.epochs_of("sw") == (1, math.inf)
    assert not configs.SamplingConfig(weights={"en": 1}).limits_epochs


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


@pytest.mark.parametrize("kind", BAD, ids=lambda kind: kind.__name__)
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
        (steps(60), {"eval_every_steps": 61}, False, 0.0, []),
    ],
)
def test_settings_that_a_run_cannot_follow_are_said(
    schedule, changes, evaluating, fraction, said
):
    training = configs.TrainingConfig(**{"save_checkpoints_steps": 50, **changes})
    found = configs.without_effect(schedule, training, evaluating, fraction)
    assert len(found) == len(said)
    assert all(part in one for part, one in zip(said, found, strict=True)), found
