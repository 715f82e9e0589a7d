"""Callbacks for libraries that people train with: each module imports its own library, nothing else does."""
