"""How the predictions of several models become one, and how numbers become answers."""
