"""Callbacks for libraries that people train with: each module alone imports its library."""
