"""The `mle-star` command. `app.py` is the frame; each other module holds the commands of one subject."""
