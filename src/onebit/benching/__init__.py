"""`onebit bench`: a packed net in its engine and in other programs, timed in turns; its layers."""
