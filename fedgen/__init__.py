"""fedgen: train, fine-tune and score generative models on data that stays with its owners."""

__version__ = "0.1.0"
