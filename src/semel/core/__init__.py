"""The engine and its parts. Start with `engine.py`: it is the product in one function."""
