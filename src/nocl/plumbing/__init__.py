"""What every room uses and no room owns: types, names, files, seeds, progress. Knows nothing of learning."""
