"""onebit beside what one could take instead: the same model file, in turns, as many threads for each.

`python -m benchmarks.peers --help`, from the root of the repository.
"""
