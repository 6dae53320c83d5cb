"""Arms over paired seeds, scored on clients that train and on clients that never do."""
