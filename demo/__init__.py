"""The demo: real reviews, a small sentiment model and a plain reference. Run from the repository root."""
