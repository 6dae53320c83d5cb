"""State of a module and its optimizers in clients' turns: what travels, what is reset, what stays personal."""
