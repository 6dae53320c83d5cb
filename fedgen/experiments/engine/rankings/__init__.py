"""Tables, figures and sentences of generators ranked by avg and all."""
