"""How much the tests see: bugs made by hand, each put into a copy of the tree whose tests must then fail."""
