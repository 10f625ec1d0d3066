"""What the marks of a level mean, in the words that pages and commands say below its numbers."""

from __future__ import annotations

MARKS = {
    "short": "fewer requests than 10 × C (5 × C above 16; of a rate, those of a minute), or less than 30 s of steady window: good for a look, not "
             "for a comparison",
    "never full": "at no time were C requests in flight, so this is no level of that concurrency: it gets no verdict and is in no noise floor",
    "client-bound": "the client was too slow to be believed: its own lag was above 5 % of the median gap between chunks, or its CPU above 80 %",
    "errors": "more than 1 % of the requests failed: the level is not comparable, since what is left may be what was easy",
    "counted by chunks": "the server sent no usage, so chunks stand for tokens: never compared with a level whose tokens were counted",
    "reasoning only": "more than 10 % of the answers ended by length before any content: ask for a larger max_tokens",
    "length not obeyed": "more than 1 % of the answers had another length than was demanded",
    "cut": "some requests were ended before they had finished, because the level's time was over or somebody ended it",
    "bunched": "more than half of all chunks came in the same read as the one before: something between buffers the stream",
    "overloaded": "fewer than 90 % of the requests came back at the rate at which they went out: latencies tell of how long that went on",
    "length not counted": "the tool gave the length that was asked for as the output tokens, and its own count of the text is lower",
}
