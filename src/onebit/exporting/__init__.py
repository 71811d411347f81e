"""From a trained net in PyTorch to a file of bits: trace, lower, fold, write."""
