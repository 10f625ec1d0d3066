"""GPUs of this node: memory, utilization, temperature, power, and the processes that hold them."""
