"""Methods side by side: the same net, data, schedule, seeds and learning rates for each."""
