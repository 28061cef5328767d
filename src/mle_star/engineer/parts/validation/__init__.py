"""How a script judges itself: metrics, folds, cross-validation, studies; and how it answers."""
