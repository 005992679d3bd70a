"""Samples -> what was measured: devices, consumers, holders and Kubernetes objects, by window.

`collect.py` makes one partition (a UTC day of a cluster); `gpu.py` reads exporters and `measure.py` says what their
rows mean, `kube.py` reads kube-state-metrics, `readings.py` is what both stand on. Nothing here knows of prices,
teams or shares.
"""
