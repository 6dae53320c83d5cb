"""Denoising diffusion: module, schedules, samplers, losses of examples, pretrained folders."""
