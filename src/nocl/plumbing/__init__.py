"""Used by all other packages: types, registry, files, seeds, progress. Contains nothing about learning."""
