"""What comes from outside, made into batches."""
