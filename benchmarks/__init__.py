"""How fast it folds, measured side by side with what reads the same topic and does nothing else: `python -m benchmarks`.

Compare ratios within one run, because speeds differ between machines. The package does not import anything from here.
"""
