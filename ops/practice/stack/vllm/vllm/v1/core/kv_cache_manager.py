"""Prefix caching: which leading blocks of a prompt another prompt has left in the KV cache."""

from collections import OrderedDict

from vllm.config.model import BLOCK_TOKENS
from vllm.model_executor.models.practice_answers import tokenize


class PrefixCache:
    """Full blocks of prompts, by what they and everything before them say. Holds at most `blocks`; the one that was used longest ago goes first."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._held: OrderedDict[int, None] = OrderedDict()

    def look(self, prompt: str, prompt_tokens: int) -> int:
        """How many of the prompt's tokens are in the cache; afterwards all its full blocks are. The last token is always computed."""
        tokens = tokenize(prompt)
        cached, chain, together = 0, 0, True
        for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            chain = hash((chain, *tokens[start : start + BLOCK_TOKENS]))
            together = together and chain in self._held
            if together:
                cached += BLOCK_TOKENS
            self._held[chain] = None
            self._held.move_to_end(chain)
        while len(self._held) > self.blocks:
            self._held.popitem(last=False)
        return min(cached, (prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS)
