"""Settings of a task on a user's own files."""

REVIEWS = dict(
    name="reviews",
    kind="classification",
    files="{split}-{language}.tsv",
    texts=("text",),
    label="label",
    metric="accuracy",
)
