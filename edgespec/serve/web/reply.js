// Answers under way, each of which goes on until it ends, whatever conversation is looked at.

/** Answers under way, by the ids of their conversations. */
const underWay = new Map();

/** Returns the body of a request for what follows a node. */
function request(talk, place) {
  const body = {model, stream: true, return_progress: true, stop_loops: true, max_tokens: -1, ...options()}, [schema] = schemaInUse();
  const messages = path(talk, place).map((each) => sentAs(talk.nodes[each]));
  if (!chats) return {...body, prompt: messages.map((each) => each.content).join("")};
  if (at("system").value.trim()) messages.unshift({role: "system", content: at("system").value});
  const form = schema && {response_format: {type: "json_schema", json_schema: {name: "answer", schema}}};
  const shift = at("shift").checked && {context_shift: true};
  return {...body, messages, ...offeredTools(talk, place), ...form, ...shift};
}

/** Yields the choices of an answer as they come, with the statistics of each. */
async function* pieces(body, signal) {
  const response = await fetch(body.messages ? "v1/chat/completions" : "v1/completions", {
    method: "POST", headers: headers(), body: JSON.stringify(body), signal,
  });
  if (!response.ok) throw new Error((await response.json()).error.message);
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    const [choice] = event.choices;
    const round = event.edgespec?.tokens ? event.edgespec : {tokens: 1, drafted: 0, rounds: 0};
    const delta = body.messages ? choice.delta : {content: choice.text};
    const {looped, messages_left_out: leftOut} = event.edgespec ?? {};
    yield {delta, finish: choice.finish_reason, looped, leftOut, round, progress: event.prompt_progress};
  }
}

/** How fast tokens come. */
class Speed {
  first = null;
  tokens = 0;
  rounds = 0;

  /** Adds a round; returns what is to be told of all. */
  add(round) {
    if (this.first === null) {
      this.first = performance.now();
      return "";  // how far the prompt was read is told no longer
    }
    this.tokens += round.tokens;
    this.rounds += round.rounds;
    const rate = this.tokens / (performance.now() - this.first) * 1000;
    return `${rate.toFixed(0)} tokens/s, ${(this.tokens / Math.max(this.rounds, 1)).toFixed(2)} tokens per round`;
  }
}

/** An answer under way below a node, or one that goes on where it is. */
class Reply {
  facts = "";  // what is told beside it
  #stopper = new AbortController();
  #speed = new Speed();
  #saved = performance.now();
  #failure = null;

  constructor(talk, place, goesOn) {
    this.talk = talk;
    this.parent = place;
    this.place = goesOn ? place : null;  // its own, once something is kept
    this.got = goesOn ? Answer.from(talk.nodes[place].message) : new Answer();
    this.view = new AnswerView();
    this.view.add({content: this.got.text, reasoning_content: this.got.reasoning});
  }

  stop() {
    this.#stopper.abort();
  }

  async run() {
    try {
      if (model === null) await meet();
      if (at("models").selectedOptions[0]?.label !== model) this.#tell("The model is being loaded.");
      for await (const piece of pieces(request(this.talk, this.parent), this.#stopper.signal)) this.#take(piece);
    } catch (error) {
      this.#failure = error;
    }
    if (this.#speed.first === null) this.#tell("");  // the prompt is read no longer
    if (!this.got.empty) this.#keep();
    await this.view.end(this.got, this.got.finish !== null && this.got.finish !== "length");
    if (this.view.shown) this.#close();
    else if (this.#failure === null) announce(`${this.talk.title} was answered.`);
    else if (!this.#stopped) complain(`${this.talk.title}: ${readable(this.#failure)}`);
  }

  get #stopped() {
    return this.#failure?.name === "AbortError";
  }

  #take({delta, finish, looped, leftOut, round, progress}) {
    if (progress) {
      this.view.read(progress);
      this.#tell(readSoFar(progress));
    }
    this.got.add(delta);
    this.got.finish = finish ?? this.got.finish;
    this.got.looped = looped ?? this.got.looped;
    this.got.leftOut = leftOut ?? this.got.leftOut;
    this.view.add(delta, round.drafted);
    if (delta.content || delta.reasoning_content || delta.tool_calls) this.#tell(this.#speed.add(round));
    if (performance.now() - this.#saved < 1000) return;
    this.#keep();  // a reload loses a second of it
    this.#saved = performance.now();
  }

  #tell(facts) {
    this.facts = facts;
    if (this.view.shown) tell(facts);
  }

  /** Keeps what has come in the conversation. */
  #keep() {
    const {talk, got} = this;
    this.place ??= grow(talk, this.parent, got.message);
    Object.assign(talk.nodes[this.place], {message: got.message, finish: got.finish});
    save(talk);
  }

  /** Tells how the answer ended, and offers what can be done with it. */
  #close() {
    const {got, place, view} = this;
    if (this.#failure !== null && got.empty) view.article.remove();
    if (got.complete.length) offerResults(view.article, got.complete, place, this.#failure === null);
    if (this.#failure === null) announce(spoken(got));
    else if (this.#stopped) announce("Stopped.");
    else complain(readable(this.#failure));
    if (got.leftOut) view.remark(`The ${got.leftOut} oldest messages had no room in the context, and were not read.`);
    if (got.looped) view.remark("Stopped: it repeats itself.");
    else if (got.finish === "length") view.remark("Cut at the most tokens that the settings or the context allow.");
    else if (this.#failure === null && got.empty) view.remark("The answer is empty.");
    if (place !== null) dress(view.article, place);
  }
}

/** Returns how much of a prompt the model has read. */
function readSoFar({processed, total}) {
  const [read, all] = [processed, total].map((count) => count.toLocaleString());
  return processed < total ? `reading ${read} of ${all} tokens` : "";
}

/** What screen readers say of an answer, once it is complete. */
function spoken(got) {
  const names = got.complete.map((call) => call.name).join(", ");
  const called = names && `The model calls ${names}${got.complete.every(({name}) => servedTool(name)) ? "" : " and waits for the result"}.`;
  return [got.text, called].filter(Boolean).join(" ") || "There is no text in the answer.";
}
