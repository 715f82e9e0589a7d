"""In place of tiktoken, whose vocabulary would be downloaded: a token is a letter."""

from collections.abc import Iterable

N_TOKENS = 50257


class Letters:
    """An encoding of letters."""

    n_vocab = N_TOKENS

    def encode(self, text: str, **_: object) -> list[int]:
        """Return a number for each letter."""
        return [ord(letter) % N_TOKENS for letter in text]

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the letters of numbers."""
        return "".join(map(chr, tokens))


def get_encoding(name: str) -> Letters:
    """Return the encoding of letters for every name."""
    return Letters()
