"""Parts that experiments are made of: kept steps, data, trainings, scores, comparisons over paired seeds."""
