"""Python environments with the serving stack: what is installed, whether it is whole, how a new release is built."""
