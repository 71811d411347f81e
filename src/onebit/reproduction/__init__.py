"""The paper's tables and figures, made anew: what to train for each, what is kept of it, how it is shown."""
