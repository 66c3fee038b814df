"""Servers unpacked from packages, hostile workloads, pipelines under test: what our own tests stand on."""
