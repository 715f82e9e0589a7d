"""In place of tensorflow, which a program imports only to read weights that it does not load here."""
