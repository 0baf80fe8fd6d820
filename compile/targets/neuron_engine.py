"""Slots on NeuronCores that choose their tokens themselves: only tokens come back, which is faster.

Draws come from the device's own generator, so no seed reaches them, and a text is not promised to be the same twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compile.generation.requests import Completion, Request, TextRules
from compile.generation.sampling import Sampling
from compile.generation.slots import Decode, Prefill, SlotUse
from compile.generation.static import Text, fed, run_slots
from compile.generation.stops import finish_reason
from compile.targets.neuron_graphs import GREEDY, NeuronGraphs

MAX_TOP_K = 256
"""Of optimum-neuron's sampler: tokens that it looks at, at most."""


class NeuronEngine:
    """See compile.targets.decoders.Generator.

    Log probabilities are not told (NaN), and a row whose logits are NaN gets some token. Its prefill graph is as long
    as a slot, so that whatever a former text left there is overwritten.
    """

    max_top_k = MAX_TOP_K

    def __init__(self, graphs: NeuronGraphs) -> None:
        self.use: SlotUse | None = None
        self._graphs = graphs

    def generate(self, requests: Sequence[Request], sampling: Sampling, text: TextRules) -> Iterator[Completion]:
        """Raises ValueError before anything runs when a prompt, a limit or a setting does not fit, DeviceError."""
        lacking = unsupported(sampling, text)
        if lacking:
            raise ValueError(lacking)
        if any(request.asked for request in requests):
            raise ValueError("neuron.on_device_sampling has one setting for all slots; none of a request can reach it")
        params = (float(sampling.top_k), sampling.top_p, sampling.temperature) if sampling.do_sample else GREEDY
        graphs = self._graphs

        def execute(step: Prefill | Decode, texts: Sequence[Text]) -> list[int]:
            if isinstance(step, Prefill):
                return [int(token) for token in graphs.prefill(step.slots, [texts[0].request.token_ids], params)]
            found = graphs.decode(*fed(graphs.grid, step, texts), params)
            return [int(found[slot]) for slot in step.slots]

        def advance(one: Text, token: int) -> None:
            one.tokens[one.count] = token
            one.count += 1
            one.log_probability = float("nan")
            one.reason = finish_reason(sampling, one.new_tokens, one.limit, text.decode)

        def told(use: SlotUse) -> None:
            self.use = use

        return run_slots(graphs.grid, requests, sampling, text, execute, advance, told)


def unsupported(sampling: Sampling, text: TextRules) -> str | None:
    """Which setting the device's sampler does not have, in a sentence; None when it has all."""
    for name, asked in (
        ("min_p", sampling.do_sample and sampling.min_p is not None),
        ("repetition_penalty", sampling.repetition_penalty != 1.0),
        ("presence_penalty", sampling.presence_penalty != 0.0),
        ("frequency_penalty", sampling.frequency_penalty != 0.0),
        ("logprobs", sampling.logprobs is not None),
        ("no_repeat_ngram_size", sampling.no_repeat_ngram_size > 0),
        ("logit_bias", bool(sampling.sequence_bias)),
        ("min_new_tokens", sampling.min_new_tokens > 0),
        ("constraint", text.constraint is not None),
    ):
        if asked:
            return f"neuron.on_device_sampling has no {name}; leave it out, or choose tokens on the host"
    if sampling.do_sample and not 1 <= sampling.top_k <= MAX_TOP_K:
        return f"neuron.on_device_sampling takes a top_k of 1 to {MAX_TOP_K}, not {sampling.top_k}"
    return None
