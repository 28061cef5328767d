"""How a script scores itself: metrics, folds, cross-validation, studies; and how it answers."""
