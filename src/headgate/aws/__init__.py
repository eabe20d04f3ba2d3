"""What runs on AWS besides the limiter: the stack, and the functions in it."""
