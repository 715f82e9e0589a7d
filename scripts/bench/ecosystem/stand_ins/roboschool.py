"""In place of roboschool, which is no longer installed anywhere; ``gym`` here has its environment."""
