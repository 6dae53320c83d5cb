"""The parts of the Fréchet loss: what it pulls to, eigendecompositions that are kept, buffers of late shapes."""
