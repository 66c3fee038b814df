"""Benchmarks: tailrace against the limits and peers it is compared with, measured in one run."""
