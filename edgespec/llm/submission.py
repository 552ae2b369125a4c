"""Requests become streams: what the engine continues, and how its tokens become an answer."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

from edgespec.errors import InputError
from edgespec.llm.chat import PreparedPrompt
from edgespec.llm.instance import ModelInstance
from edgespec.llm.load.options import MAX_DRAFT_TOKENS, PLANNED_DRAFT_TOKENS, RECYCLING_DRAFTS
from edgespec.llm.options import GenerationOptions
from edgespec.llm.request import GenerationRequest
from edgespec.llm.stream import Stream, TextFacts
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.speculation.generation import NO_DRAFT, Kept, Limits, Request
from edgespec.runtime.text.decoder import TextDecoder
from edgespec.runtime.text.endings import Ending
from edgespec.runtime.text.loops import LoopMatcher


def submit(
    instance: ModelInstance, request: GenerationRequest, kept: Kept = lambda: None
) -> Stream:
    """Prepares a text, which begins when its stream is read.

    Args:
        instance: the model.
        request: what is asked for.
        kept: returns what a session keeps of its text; None: there is none, or it was closed.

    Raises:
        EdgespecError: see `LLM.submit`.
    """
    instance.engine.require_open()
    instance.require_texts()
    options = request.options
    source = instance.options.draft if options.draft_source is None else options.draft_source
    if source not in instance.sources.names:
        raise InputError(
            f"draft_source is {source!r}: a model loaded with draft {instance.options.draft!r} "
            f"offers {', '.join(instance.sources.names)}"
        )
    prompt = instance.prompts.prepare(request.prompt, options, instance.options.context_shift)
    if source == NO_DRAFT:  # which makes no use of it
        prompt = replace(prompt, prediction=())
    return _stream(instance, prompt, request, source, kept)


def _stream(
    instance: ModelInstance,
    prompt: PreparedPrompt,
    request: GenerationRequest,
    source: str,
    kept: Kept,
) -> Stream:
    options = request.options
    limits = _limits(instance, prompt, options, source)
    adapters = instance.adapters.chosen(options.adapter_scales)
    vocabulary = instance.tokenizer.vocab_size
    if unknown := [token for token, _ in options.logit_bias if token >= vocabulary]:
        raise InputError(f"logit_bias names token {unknown[0]}: give ids below {vocabulary}")
    continued = Request(
        prompt.tokens,
        Sampler(options, vocabulary),
        limits,
        source,
        prompt.grammar,
        options.logprobs,
        prompt.prediction[: limits.context_length] if limits.max_nodes else (),
        kept,
        salt=_salt(request.cache_key) + instance.adapters.key(adapters),
        adapters=adapters,
        turns=prompt.turns,
        look=prompt.look,
        breakers=instance.prompts.breakers.of(options),
    )
    memory: str | None = None
    if source in RECYCLING_DRAFTS:
        memory = "hot" if len(instance.sources.recycling.successors) else "cold"
    models = list(instance.working_models.values())
    facts = TextFacts(models, memory, options.json_class, prompt.unheld, prompt.left_out)
    decoder = _decoder(instance, prompt, options, limits.stop_ids)

    def again(seed: int | None) -> Stream:
        other = prompt.again(instance.tokenizer)
        seeded = replace(request, options=replace(options, seed=seed))
        return _stream(instance, other, seeded, source, kept)

    return Stream(instance.engine, continued, decoder, facts, again)


def _salt(key: str) -> str:
    """Returns a hash of a key, which may be long: it stays as long as what was computed."""
    return sha256(key.encode(errors="surrogatepass")).hexdigest() if key else ""


def _limits(
    instance: ModelInstance, prompt: PreparedPrompt, options: GenerationOptions, source: str
) -> Limits:
    target = instance.bundle.target
    nodes = MAX_DRAFT_TOKENS if prompt.prediction else PLANNED_DRAFT_TOKENS
    if options.num_assistant_tokens is not None:
        nodes = options.num_assistant_tokens
    return Limits(
        options.max_new_tokens or instance.plan.context,
        instance.plan.context,
        frozenset((*target.eos_ids, *options.stop_token_ids, *prompt.stop_ids)),
        0 if source == NO_DRAFT else nodes,
        # Of a graph that another program exported, each branch is a call of its own.
        1 if target.native.adopted else options.tree_width,
    )


def _decoder(
    instance: ModelInstance,
    prompt: PreparedPrompt,
    options: GenerationOptions,
    stop_ids: frozenset[int],
) -> TextDecoder:
    tokenizer = instance.tokenizer
    parser = prompt.parser
    ending: Ending | None = None
    if options.stop or options.min_indent or options.max_time is not None:
        marks = {} if parser is None else parser.marks
        hidden = tokenizer.special_ids - marks.keys()
        added = tokenizer.added_tokens.items() if options.stop else ()
        special = {token: id_ for token, id_ in added if id_ in hidden}
        ending = Ending(options.stop, options.min_indent, options.max_time, special)
    loops = LoopMatcher() if options.stop_loops else None
    return TextDecoder(tokenizer, prompt.tokens, parser, ending, stop_ids, loops)
