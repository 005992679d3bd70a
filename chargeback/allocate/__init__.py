"""The rules on a day's evidence. `day.py` runs them in order; each module holds the rules that its first line names.

`frame.py` numbers the day's devices and windows; `devices.py` reads what was reported of them (D1, D4, M5), `uses.py`
whose memory it was (M1, M6, G2), `holding.py` who held what (H); `placing.py` divides nodes' costs among GPUs (C, G1)
and `day.py` GPUs' costs among pods (D2, S). The rules themselves are pure functions over arrays in `memory.py` (D4,
M1, M4, G2, H3), `holders.py` (H1, H2, H5), `gaps.py` (C5, G1) and `shares.py` (S1 to S4).

Rows of a day's devices are keyed by `device * width + column`: a column is a window of the day, or one before it
that may still count; column 0 stands for what was last known before all of these.
"""
