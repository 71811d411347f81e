"""Training that one can leave alone: a config, a loop, a folder that holds the run."""
