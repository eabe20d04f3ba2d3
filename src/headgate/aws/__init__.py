"""What runs beside the limiter on AWS: the stack, the functions in it, and reading what they have counted."""
