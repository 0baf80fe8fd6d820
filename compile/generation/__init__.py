"""Text generation: requests go through a static decode batch of slots, and a row's tokens depend on nothing but it."""
