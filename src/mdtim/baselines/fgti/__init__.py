"""FGTI, a diffusion model guided by the frequencies of what is observed.

Written from its description (Yang et al. 2024): noise prediction on hidden cells as in CSDI, with
two filtered views of the observed series, the high and the dominant frequencies, brought in by
cross-attention.
"""
