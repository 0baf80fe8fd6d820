"""Tasks: what a row becomes. Found by name, one small module each."""
