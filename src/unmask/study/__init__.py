"""Studies: one file each."""
