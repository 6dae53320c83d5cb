"""Run folders: checkpoints, scores.jsonl, selection, and models and clients rebuilt from recipes."""
