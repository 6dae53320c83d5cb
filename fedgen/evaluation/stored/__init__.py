"""Stored sets, folders of images and .npz files, scored without a recipe or a model."""
