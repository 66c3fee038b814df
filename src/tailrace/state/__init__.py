"""The state directory: what lies where, locks and leases, what is asked of a run, who reads the log."""
