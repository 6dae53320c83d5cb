"""Stored sets of anybody, folders of images and .npz files, scored without a recipe or a model."""
