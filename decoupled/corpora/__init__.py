"""Sources of text -> documents by language -> the corpus folder."""
