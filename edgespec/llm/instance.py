"""What lies behind an `LLM`: a bundle's models, and the engine that continues texts.

No part of the API: sessions, embeddings, measuring and training use it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from edgespec.bundle import TARGET, Bundle
from edgespec.errors import InputError
from edgespec.llm.images import Viewer
from edgespec.llm.load.drafters import make_drafters
from edgespec.llm.load.models import load_models
from edgespec.llm.load.options import LoadOptions
from edgespec.llm.load.place import MemoryUse, plan_memory
from edgespec.llm.prompt_files import PromptFiles
from edgespec.llm.prompts import Prompts, grammars_of
from edgespec.llm.stored_prompts import StoredPrompts
from edgespec.runtime.drafters.model import ModelDrafter
from edgespec.runtime.plan import MemoryPlan
from edgespec.runtime.sequences.model import AFTER, Model, Rows
from edgespec.runtime.sequences.pool import TokenSequence
from edgespec.runtime.speculation.engine import Engine
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.system.machine import default_threads

if TYPE_CHECKING:
    from edgespec.runtime.sampling.grammar import GrammarCompiler


class ModelInstance:
    """A loaded bundle.

    Args and attributes:
        bundle: the bundle.
        options: how it is loaded.
        tokenizer: tokenizer of the target; None: it is read.
        plan: where the models run, and their memory, from `plan_memory`; None: it is made.
        grammars: returns the compiler of grammars; None: it is made when it is needed.

    Attributes:
        prompts: converts what users give.
        sources: the draft sources.
        models: the models by role; none once it is closed.
        adapters: the adapters of the target.
        engine: continues sequences.

    Raises:
        EdgespecError: see `LLM`.
    """

    def __init__(
        self,
        bundle: Bundle,
        options: LoadOptions,
        tokenizer: Tokenizer | None = None,
        plan: MemoryPlan | None = None,
        grammars: Callable[[], GrammarCompiler] | None = None,
    ) -> None:
        self.bundle = bundle
        self.options = options
        self.tokenizer = tokenizer or Tokenizer.of(bundle)
        if bundle.target.writes:
            self.tokenizer.require_messages_shown(bundle.path)
        files = PromptFiles.asked_for(options, bundle)
        self.plan = plan_memory(bundle, options) if plan is None else plan
        self._opened = load_models(bundle, options, self.plan)
        self.models = self._opened.roles
        self.adapters = self._opened.adapters
        self.sources = make_drafters(bundle, options, self.tokenizer, self._opened)
        threads = options.threads or default_threads()
        placed = self.plan.roles[TARGET]
        native = placed.native and placed.behind is None
        self._viewer = Viewer(bundle, self.tokenizer, threads, native)
        grammars = grammars or partial(grammars_of, bundle, self.tokenizer)
        self.prompts = Prompts(bundle, self.tokenizer, self.plan.context, self._viewer, grammars)
        target = self.models[TARGET]
        self._stored: StoredPrompts | None = None
        if files is not None:
            from edgespec.runtime.engines.native import arithmetic  # loads ONNX Runtime

            computed = (arithmetic(), target.device, target.halves)
            self._stored = StoredPrompts(files, (*computed, bundle.digest))
        sources = self.sources
        self.engine = Engine(target, sources.drafters, self._stored, sources.timings)

    def warm_up(self) -> None:
        """See `LLM.warm_up`."""
        for model in list(self.models.values()):
            with self.engine.exclusive():
                rows = Rows(model.sequence([]), [0], [AFTER], [0])
                model.forward([rows])
                rows.accept([])
        self.engine.measure()

    def shrink(self) -> None:
        """Gives back the memory of what ended texts have left for others; sessions keep theirs.

        Prompts that are kept on disk are read again from there.
        """
        with self.engine.exclusive():
            for model in self.models.values():
                model.prefixes.clear()
                model.pool.shrink()

    def close(self) -> None:
        """See `LLM.close`."""
        self.engine.close()
        if self._stored is not None:
            self._stored.close()
        # Frees them whoever still refers to this, such as a stream that nobody ended.
        self.sources.close()
        self._opened.close()
        self._viewer.close()

    @property
    def memory_use(self) -> MemoryUse:
        """Its memory, for the plan of another model in this process."""
        held = {each.memory: each.weights for each in self.plan.demands}
        for name, model in self.models.items():
            held[self.plan.roles[name].memory] += model.pool.size
        return MemoryUse(self.plan, held)

    def require_texts(self) -> None:
        """Checks that the model generates text.

        Raises:
            InputError: if it makes embeddings, or ranks texts.
        """
        if (target := self.bundle.target).writes:
            return
        does = "makes embeddings, and no text: use LLM.embed or /v1/embeddings"
        if target.ranking is not None:
            does = "ranks texts, and writes none: use LLM.rerank or /v1/rerank"
        raise InputError(f"the model {does}, or a bundle of a model that writes text")

    @property
    def working_models(self) -> dict[str, Model]:
        """The target, and the draft model unless its device has failed."""
        drafting = [each.model for each in self.engine.drafters if isinstance(each, ModelDrafter)]
        return {n: each for n, each in self.models.items() if n == TARGET or each in drafting}

    def drop(self, kept: TokenSequence) -> None:
        """Gives up what a session keeps."""
        if self.models:  # else all was given up
            self.engine.drop(kept)
