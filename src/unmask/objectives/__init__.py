"""What a model is trained for: one file an objective. So far each holds how sequences are cut and what is asked of them."""
