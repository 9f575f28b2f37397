"""Each configuration accepts what can work and names the field of what cannot."""

import dataclasses
import math
import pathlib
import subprocess
import sys

import pytest

from decoupled import configs
from decoupled.core.errors import UserError

GOOD = {
    configs.ModelConfig: dict(
        vocab_size=1000,
        input_embedding_size=16,
        project_equal_widths=False,
        output_embedding_size=64,
        output_embedding_rank=0,
        coupled=False,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        head_size=8,
        intermediate_size=128,
        max_positions=64,
        type_vocab_size=2,
        hidden_dropout=0.1,
        attention_dropout=0.0,
        activation="gelu",
        layer_norm_epsilon=1e-12,
        initializer_range=0.02,
        mlm_transform="dense_activation_norm",
    ),
    configs.MeshConfig: dict(
        mesh_shape="all:1",
        layout_rules="",
        activation_dtype="float32",
        embedding_lookup="gather",
        slice_dtype="float32",
        stack_mib=128,
    ),
    configs.MaskingConfig: dict(
        sequence_length=64,
        max_predictions=10,
        masking_rate=0.15,
        mask_token_rate=0.8,
        random_token_rate=0.1,
    ),
    configs.SamplingConfig: dict(
        alpha=0.5,
        weights={"en": 0.2},
        min_epochs=None,
        max_epochs={"*": 10, "en": 2.5},
    ),
    configs.VocabularyConfig: dict(
        vocab_size=1000,
        character_coverage=0.9995,
        byte_fallback=False,
        max_sentences=10,
        max_bytes=1000,
        num_threads=16,
    ),
    configs.ParallelTextConfig: dict(
        dev_share=0.04,
        test_share=0.04,
        seed=0,
        group=None,
        max_pairs=1000,
        max_train_examples=4000,
        max_test_examples=1000,
    ),
    configs.OptimizerConfig: dict(
        name="adamw",
        learning_rate=1e-3,
        weight_decay=0.01,
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-6,
        clip_norm=1.0,
    ),
    configs.ScheduleConfig: dict(
        train_steps=10,
        warmup_steps=0,
        decay="linear",
        decay_steps=None,
        final_share=0.0,
    ),
    configs.TrainingConfig: dict(
        batch_size=8,
        gradient_accumulation=2,
        save_checkpoints_steps=5,
        keep_checkpoint_max=2,
        log_steps=1,
        eval_every_steps=0,
        eval_batch_size=4,
        eval_sequences=0,
        seed=0,
        label_smoothing=0.1,
        recompute_layers=False,
        iterations_per_loop=100,
    ),
    configs.PlanConfig: dict(efficiency=0.4, memory_share=0.9),
    configs.FinetuningConfig: dict(
        num_epochs=3.0,
        max_sequence_length=64,
        classifier_dropout=0.1,
        keep_layers=0,
        freeze_input_embedding=False,
        warmup_fraction=0.1,
        learning_rates=(1e-5, 2e-5),
        class_weights="none",
        group_by_length=True,
        pack_sequences=False,
    ),
    configs.OwnTaskConfig: dict(
        name="reviews",
        kind="classification",
        files="{split}-{language}.tsv",
        splits=("train", "dev", "test"),
        split_column=None,
        training_languages=("en",),
        texts=("text",),
        label="label",
        labels=(),
        metric="accuracy",
    ),
    configs.QuestionAnsweringConfig: dict(
        max_question_length=64,
        doc_stride=128,
        max_answer_length=30,
        n_best=20,
    ),
    configs.StudyConfig: dict(
        first_rows=("a",),
        learning_rates={"a": 1e-3},
        control_rows=("a",),
        dropped_rows=(),
        most_dropped=2,
        secondary_tasks=("books",),
    ),
    configs.ScaleConfig: dict(width_divisor=8, head_size_divisor=4, depth_divisor=4),
    configs.SweepConfig: dict(
        title="t",
        rows=("a", "b"),
        keep_layers={"a": 3},
        tasks=("xnli",),
        seeds=(0, 1),
        finetuning_runs=1,
        task_files={},
        pretraining=(),
        finetuning=(),
        warm_processes=True,
    ),
    configs.ClusterConfig: dict(
        workers=(), start_seconds=120.0, patience_seconds=30.0, accept_open_ports=False
    ),
    configs.RetrievalConfig: dict(
        layer=-1,
        pool_special_tokens=True,
        centre=False,
        scoring="ratio_margin",
        num_neighbours=4,
        max_sequence_length=128,
        long_sentences="cut",
        batch_size=64,
    ),
}
GOOD[configs.PhaseConfig] = dict(
    steps=10,
    masking=configs.MaskingConfig(**GOOD[configs.MaskingConfig]),
    sampling=configs.SamplingConfig(**GOOD[configs.SamplingConfig]),
    batch_size=8,
)
KINDS = {kind.__name__: kind for kind in GOOD}

REFUSED = [
    ("ModelConfig", dict(vocab_size=0), "vocab_size"),
    ("PhaseConfig", dict(steps=0), "steps"),
    ("PhaseConfig", dict(batch_size=-8), "batch_size"),
    ("PhaseConfig", dict(masking=None), "masking"),
    ("PhaseConfig", dict(sampling=0.5), "sampling"),
    ("ModelConfig", dict(input_embedding_size=-1), "input_embedding_size"),
    ("ModelConfig", dict(project_equal_widths=1), "project_equal_widths"),
    ("ModelConfig", dict(output_embedding_size=0), "output_embedding_size"),
    ("ModelConfig", dict(output_embedding_rank=-1), "output_embedding_rank"),
    ("ModelConfig", dict(output_embedding_rank=64), "output_embedding_rank"),
    (
        "ModelConfig",
        dict(coupled=True, output_embedding_size=16, output_embedding_rank=8),
        "output_embedding_rank",
    ),
    ("ModelConfig", dict(coupled=True), "coupled"),
    ("ModelConfig", dict(coupled=1), "coupled"),
    ("ModelConfig", dict(hidden_size=33), "hidden_size"),
    ("ModelConfig", dict(num_layers=0), "num_layers"),
    ("ModelConfig", dict(num_layers=2.0), "num_layers"),
    ("ModelConfig", dict(num_heads=0), "num_heads"),
    ("ModelConfig", dict(head_size=0), "head_size"),
    ("ModelConfig", dict(intermediate_size=0), "intermediate_size"),
    ("ModelConfig", dict(max_positions=0), "max_positions"),
    ("ModelConfig", dict(type_vocab_size=0), "type_vocab_size"),
    ("ModelConfig", dict(hidden_dropout=1.0), "hidden_dropout"),
    ("ModelConfig", dict(hidden_dropout=float("nan")), "hidden_dropout"),
    ("ModelConfig", dict(attention_dropout=-0.1), "attention_dropout"),
    ("ModelConfig", dict(activation="swish"), "activation"),
    ("ModelConfig", dict(layer_norm_epsilon=0.0), "layer_norm_epsilon"),
    ("ModelConfig", dict(initializer_range=0.0), "initializer_range"),
    ("ModelConfig", dict(mlm_transform="none"), "mlm_transform"),
    ("MeshConfig", dict(mesh_shape=1), "mesh_shape"),
    ("MeshConfig", dict(layout_rules=None), "layout_rules"),
    ("MeshConfig", dict(activation_dtype="float16"), "activation_dtype"),
    ("MeshConfig", dict(embedding_lookup="onehot"), "embedding_lookup"),
    ("MeshConfig", dict(slice_dtype="float16"), "slice_dtype"),
    ("MeshConfig", dict(stack_mib=-1), "stack_mib"),
    ("MaskingConfig", dict(sequence_length=3), "sequence_length"),
    ("MaskingConfig", dict(sequence_length=0), "sequence_length"),
    ("MaskingConfig", dict(max_predictions=63), "max_predictions"),
    ("MaskingConfig", dict(max_predictions=0), "max_predictions"),
    ("MaskingConfig", dict(masking_rate=0.0), "masking_rate"),
    ("MaskingConfig", dict(masking_rate=1.1), "masking_rate"),
    ("MaskingConfig", dict(mask_token_rate=1.1), "mask_token_rate"),
    ("MaskingConfig", dict(random_token_rate=-0.1), "random_token_rate"),
    ("MaskingConfig", dict(random_token_rate=0.3), "random_token_rate"),
    ("SamplingConfig", dict(alpha=1.5), "alpha"),
    ("SamplingConfig", dict(alpha="0.5"), "alpha"),
    ("SamplingConfig", dict(weights=0.5), "weights"),
    ("SamplingConfig", dict(weights={}), "weights"),
    ("SamplingConfig", dict(weights={1: 0.5}), "weights"),
    ("SamplingConfig", dict(weights={"en": -0.5}), "weights"),
    ("SamplingConfig", dict(weights={"en": "much"}), "weights"),
    ("SamplingConfig", dict(weights={"*": 0.5}), "weights"),
    ("SamplingConfig", dict(min_epochs=-1), "min_epochs"),
    ("SamplingConfig", dict(min_epochs=True), "min_epochs"),
    ("SamplingConfig", dict(min_epochs=20.0), "min_epochs"),
    ("SamplingConfig", dict(min_epochs={"en": 3}), "min_epochs"),
    ("SamplingConfig", dict(weights={"sw": 0}, min_epochs={"sw": 1}), "min_epochs"),
    ("SamplingConfig", dict(max_epochs=float("inf")), "max_epochs"),
    ("SamplingConfig", dict(max_epochs={"en": None}), "max_epochs"),
    ("VocabularyConfig", dict(vocab_size=0), "vocab_size"),
    ("VocabularyConfig", dict(character_coverage=0.0), "character_coverage"),
    ("VocabularyConfig", dict(character_coverage=1.01), "character_coverage"),
    ("VocabularyConfig", dict(byte_fallback=0), "byte_fallback"),
    ("VocabularyConfig", dict(max_sentences=0), "max_sentences"),
    ("VocabularyConfig", dict(max_bytes=0), "max_bytes"),
    ("VocabularyConfig", dict(max_bytes=2e9), "max_bytes"),
    ("VocabularyConfig", dict(num_threads=0), "num_threads"),
    ("VocabularyConfig", dict(num_threads=1025), "num_threads"),
    ("OptimizerConfig", dict(name="sgd"), "name"),
    ("OptimizerConfig", dict(name="adafactor"), "adafactor"),
    ("OptimizerConfig", dict(learning_rate=0.0), "learning_rate"),
    ("OptimizerConfig", dict(weight_decay=-0.1), "weight_decay"),
    ("ParallelTextConfig", dict(dev_share=-0.1), "dev_share"),
    ("ParallelTextConfig", dict(test_share=0.96), "test_share"),
    ("ParallelTextConfig", dict(seed=-1), "seed"),
    ("ParallelTextConfig", dict(group="("), "group"),
    ("ParallelTextConfig", dict(max_pairs=0), "max_pairs"),
    ("ParallelTextConfig", dict(max_train_examples=0), "max_train_examples"),
    ("ParallelTextConfig", dict(max_test_examples=0), "max_test_examples"),
    ("OptimizerConfig", dict(beta1=1.0), "beta1"),
    ("OptimizerConfig", dict(beta2=1.0), "beta2"),
    ("OptimizerConfig", dict(epsilon=0.0), "epsilon"),
    ("OptimizerConfig", dict(clip_norm=-1.0), "clip_norm"),
    ("ScheduleConfig", dict(train_steps=0), "train_steps"),
    ("ScheduleConfig", dict(train_steps=10.5), "train_steps"),
    ("ScheduleConfig", dict(warmup_steps=-1), "warmup_steps"),
    ("ScheduleConfig", dict(decay="cubic"), "decay"),
    ("ScheduleConfig", dict(decay_steps=0), "decay_steps"),
    ("ScheduleConfig", dict(final_share=1.1), "final_share"),
    ("ScheduleConfig", dict(warmup_steps=5, decay_steps=6), "decay_steps"),
    ("ScheduleConfig", dict(decay="constant", decay_steps=5), "decay_steps"),
    ("ScheduleConfig", dict(decay="constant", final_share=0.1), "final_share"),
    ("TrainingConfig", dict(batch_size=0), "batch_size"),
    ("TrainingConfig", dict(gradient_accumulation=3), "gradient_accumulation"),
    ("TrainingConfig", dict(gradient_accumulation=0), "gradient_accumulation"),
    ("TrainingConfig", dict(save_checkpoints_steps=0), "save_checkpoints_steps"),
    ("TrainingConfig", dict(keep_checkpoint_max=0), "keep_checkpoint_max"),
    ("PlanConfig", dict(efficiency=0.0), "efficiency"),
    ("PlanConfig", dict(memory_share=1.5), "memory_share"),
    ("TrainingConfig", dict(log_steps=0), "log_steps"),
    ("TrainingConfig", dict(recompute_layers=1), "recompute_layers"),
    ("TrainingConfig", dict(iterations_per_loop=0), "iterations_per_loop"),
    ("TrainingConfig", dict(eval_every_steps=-1), "eval_every_steps"),
    ("TrainingConfig", dict(eval_batch_size=0), "eval_batch_size"),
    ("TrainingConfig", dict(eval_sequences=-1), "eval_sequences"),
    ("TrainingConfig", dict(seed=-1), "seed"),
    ("TrainingConfig", dict(label_smoothing=1.0), "label_smoothing"),
    ("TrainingConfig", dict(label_smoothing=-0.1), "label_smoothing"),
    ("FinetuningConfig", dict(num_epochs=0.0), "num_epochs"),
    ("FinetuningConfig", dict(max_sequence_length=0), "max_sequence_length"),
    ("FinetuningConfig", dict(classifier_dropout=1.0), "classifier_dropout"),
    ("FinetuningConfig", dict(keep_layers=-1), "keep_layers"),
    ("FinetuningConfig", dict(freeze_input_embedding="no"), "freeze_input_embedding"),
    ("FinetuningConfig", dict(warmup_fraction=1.0), "warmup_fraction"),
    ("FinetuningConfig", dict(learning_rates=2e-5), "learning_rates"),
    ("FinetuningConfig", dict(learning_rates=[2e-5]), "learning_rates"),
    ("FinetuningConfig", dict(learning_rates=(2e-5, 0.0)), "learning_rates"),
    ("FinetuningConfig", dict(learning_rates=("2e-5",)), "learning_rates"),
    ("FinetuningConfig", dict(learning_rates=(2e-5, 2e-5)), "learning_rates"),
    ("FinetuningConfig", dict(class_weights="inverse"), "class_weights"),
    ("FinetuningConfig", dict(group_by_length=8), "group_by_length"),
    ("FinetuningConfig", dict(pack_sequences=1), "pack_sequences"),
    ("ScaleConfig", dict(width_divisor=0), "width_divisor"),
    ("ScaleConfig", dict(head_size_divisor=1.5), "head_size_divisor"),
    ("ScaleConfig", dict(depth_divisor=-1), "depth_divisor"),
    ("StudyConfig", dict(learning_rates={"a": 0.0}), "learning_rates"),
    ("StudyConfig", dict(most_dropped=-1), "most_dropped"),
    ("StudyConfig", dict(first_rows="a"), "first_rows"),
    ("StudyConfig", dict(control_rows="a"), "control_rows"),
    ("StudyConfig", dict(dropped_rows="a"), "dropped_rows"),
    ("StudyConfig", dict(secondary_tasks="a"), "secondary_tasks"),
    ("SweepConfig", dict(title=1), "title"),
    ("SweepConfig", dict(rows=()), "rows"),
    ("SweepConfig", dict(rows=("a", "a")), "rows"),
    ("SweepConfig", dict(keep_layers={"c": 1}), "keep_layers"),
    ("SweepConfig", dict(tasks=(1,)), "tasks"),
    ("SweepConfig", dict(seeds=(0, 0)), "seeds"),
    ("SweepConfig", dict(finetuning_runs=0), "finetuning_runs"),
    ("SweepConfig", dict(task_files=()), "task_files"),
    ("SweepConfig", dict(rows=("../a",)), "rows"),
    ("SweepConfig", dict(rows=("",)), "rows"),
    ("SweepConfig", dict(keep_layers={"a": "1"}), "keep_layers"),
    ("SweepConfig", dict(tasks=("..",)), "tasks"),
    ("SweepConfig", dict(tasks=("/tmp/a",)), "tasks"),
    ("SweepConfig", dict(task_files={"xnli": 1}), "task_files"),
    ("SweepConfig", dict(pretraining=(1,)), "pretraining"),
    ("SweepConfig", dict(pretraining=("A = 1\nB = 1",)), "pretraining"),
    ("SweepConfig", dict(pretraining=("A = 1\r",)), "pretraining"),
    ("SweepConfig", dict(finetuning=("A = 1\n",)), "finetuning"),
    ("SweepConfig", dict(finetuning=("A = 1\u2028B = 1",)), "finetuning"),
    ("SweepConfig", dict(finetuning="x"), "finetuning"),
    ("SweepConfig", dict(warm_processes=1), "warm_processes"),
    ("ClusterConfig", dict(workers=["a:1"]), "workers"),
    ("ClusterConfig", dict(workers=("a:1", 2)), "workers"),
    ("ClusterConfig", dict(start_seconds=0.0), "start_seconds"),
    ("ClusterConfig", dict(patience_seconds="30"), "patience_seconds"),
    ("ClusterConfig", dict(accept_open_ports="no"), "accept_open_ports"),
    ("RetrievalConfig", dict(layer=1.0), "layer"),
    ("RetrievalConfig", dict(pool_special_tokens=1), "pool_special_tokens"),
    ("RetrievalConfig", dict(centre="yes"), "centre"),
    ("RetrievalConfig", dict(scoring="margin"), "scoring"),
    ("RetrievalConfig", dict(num_neighbours=0), "num_neighbours"),
    ("RetrievalConfig", dict(max_sequence_length=2), "max_sequence_length"),
    ("RetrievalConfig", dict(max_sequence_length=0), "max_sequence_length"),
    ("RetrievalConfig", dict(long_sentences="split"), "long_sentences"),
    ("RetrievalConfig", dict(batch_size=0), "batch_size"),
    ("OwnTaskConfig", dict(name="a/b"), "name"),
    ("OwnTaskConfig", dict(kind="ranking"), "kind"),
    ("OwnTaskConfig", dict(files="all.tsv"), "files"),
    ("OwnTaskConfig", dict(splits=("train",)), "splits"),
    ("OwnTaskConfig", dict(split_column="split"), "split_column"),
    ("OwnTaskConfig", dict(training_languages=()), "training_languages"),
    ("OwnTaskConfig", dict(texts=()), "texts"),
    ("OwnTaskConfig", dict(label=3), "label"),
    ("OwnTaskConfig", dict(labels=("a", "a")), "labels"),
    ("OwnTaskConfig", dict(metric="f1"), "metric"),
    ("QuestionAnsweringConfig", dict(max_question_length=0), "max_question_length"),
    ("QuestionAnsweringConfig", dict(doc_stride=0), "doc_stride"),
    ("QuestionAnsweringConfig", dict(doc_stride=64.5), "doc_stride"),
    ("QuestionAnsweringConfig", dict(max_answer_length=-1), "max_answer_length"),
    ("QuestionAnsweringConfig", dict(max_answer_length="30"), "max_answer_length"),
    ("QuestionAnsweringConfig", dict(max_answer_length=None), "max_answer_length"),
    ("QuestionAnsweringConfig", dict(n_best="20"), "n_best"),
]


@pytest.mark.parametrize("kind", GOOD, ids=lambda kind: kind.__name__)
def test_good_values_are_kept(kind):
    assert vars(kind(**GOOD[kind])) == GOOD[kind]


@pytest.mark.parametrize("name,change,field", REFUSED)
def test_impossible_values_are_refused_by_the_name_of_the_field(name, change, field):
    kind = KINDS[name]
    with pytest.raises(UserError) as caught:
        kind(**{**GOOD[kind], **change})
    message = str(caught.value)
    assert message.startswith(name)
    assert field in message
    assert "\n" not in message


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_what_must_be_positive_is_said_for_values_that_are_not_finite(value):
    kind = configs.OptimizerConfig
    with pytest.raises(UserError) as caught:
        kind(**{**GOOD[kind], "epsilon": float(value)})
    assert str(caught.value) == (
        f"OptimizerConfig.epsilon: {float(value)} is not a finite number above 0"
    )


@pytest.mark.parametrize("value", [-1, float("inf"), float("nan")])
def test_what_must_not_be_negative_is_said_for_values_that_are_not_finite(value):
    kind = configs.OptimizerConfig
    with pytest.raises(UserError) as caught:
        kind(**{**GOOD[kind], "clip_norm": float(value)})
    told = f"{float(value)} is not a finite number of at least 0"
    assert str(caught.value) == f"OptimizerConfig.clip_norm: {told}"


def test_every_field_of_every_configuration_has_a_refusal():
    tried = {(name, field) for name, change, _ in REFUSED for field in change}
    fields = {
        (kind.__name__, field.name)
        for kind in GOOD
        for field in dataclasses.fields(kind)
    }
    assert fields - tried == set()


@pytest.mark.parametrize("kind", GOOD, ids=lambda kind: kind.__name__)
def test_no_field_has_a_default(kind):
    assert all(
        field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
        for field in dataclasses.fields(kind)
    )


def test_coupled_with_equal_widths_is_accepted():
    kind = configs.ModelConfig
    kind(**{**GOOD[kind], "coupled": True, "output_embedding_size": 16})


def test_adafactor_without_momentum_and_decay_is_accepted():
    kind = configs.OptimizerConfig
    change = dict(name="adafactor", beta1=0.0, weight_decay=0.0)
    assert kind(**{**GOOD[kind], **change}).name == "adafactor"


def test_epochs_of_a_language():
    kind = configs.SamplingConfig
    some = kind(**GOOD[kind])
    assert [some.epochs_of(name) for name in ("en", "sw")] == [(0, 2.5), (0, 10)]
    assert kind(0.5, None, 1, {"en": 3}).epochs_of("sw") == (1, math.inf)
    assert not kind(0.5, {"en": 1}, None, None).limits_epochs


@pytest.mark.parametrize("kind", GOOD, ids=lambda kind: kind.__name__)
def test_every_configuration_is_documented_with_all_its_fields(kind):
    page = pathlib.Path(__file__).parent.parent.parent / "docs" / "configuration.md"
    first = kind.__doc__.splitlines()[0]
    fields = ", ".join(f"`{field.name}`" for field in dataclasses.fields(kind))
    row = f"| `{kind.__name__}` | {first} | {fields} |"
    assert row in page.read_text(encoding="utf-8").splitlines()


def test_configs_load_no_tensorflow():
    code = "import sys, decoupled.configs; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_every_configuration_is_tried_here():
    kinds = {
        value for value in vars(configs).values() if dataclasses.is_dataclass(value)
    }
    assert kinds == set(GOOD)


def test_rows_of_a_reproduction_are_those_of_its_sweep():
    sweep = configs.SweepConfig(**GOOD[configs.SweepConfig] | dict(rows=("a", "b")))
    fields = GOOD[configs.StudyConfig] | dict(learning_rates={"a": 1e-3, "b": 1e-3})
    good = configs.ReproductionRoot(sweep, configs.StudyConfig(**fields))
    good.check()
    for field, value, message in [
        ("control_rows", ("c",), "StudyConfig.control_rows: c are not among"),
        ("learning_rates", {"a": 1e-3}, "StudyConfig.learning_rates: has none for b"),
    ]:
        study = configs.StudyConfig(**fields | {field: value})
        with pytest.raises(UserError, match=message):
            configs.ReproductionRoot(sweep, study).check()


def steps(train_steps, warmup_steps=0, decay="linear"):
    return configs.ScheduleConfig(train_steps, warmup_steps, decay, None, 0.0)


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
    fields = {**GOOD[configs.TrainingConfig], "save_checkpoints_steps": 50, **changes}
    training = configs.TrainingConfig(**{"eval_every_steps": 0, **fields})
    found = configs.without_effect(schedule, training, evaluating, fraction)
    assert len(found) == len(said)
    assert all(part in one for part, one in zip(said, found, strict=True)), found
