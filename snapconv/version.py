"""The version of snapconv, in one place. Imports nothing."""

VERSION = "0.1.0"
