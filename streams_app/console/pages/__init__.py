"""The pages of the console: for each, the model and the function that collects it."""
