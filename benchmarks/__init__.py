"""How fast it folds, measured side by side with what reads the same topic and does nothing else: `python -m benchmarks`.

Machines differ; ratios within one run differ less. Nothing here is imported by the package.
"""
