// The conversation: asking, stopping, trying again, editing and giving results of calls.

let store = null, talk = newTalk();
let models = [], model = null, chats = true, seesImages = false, stopper = null;

/** Asks the server for its models. */
async function meet() {
  let complaint = null;
  try {
    const response = await fetch("/v1/models", {headers: headers()});
    at("key-label").hidden = response.status !== 401 && !at("key").value;
    if (response.status === 401) openSettings("key");
    if (!response.ok) throw new Error((await response.json()).error.message);
    models = (await response.json()).data;
    at("models").replaceChildren(...models.map(({id, status}) => {
      return make("option", {value: id}, status.value === "loaded" ? id : `${id} (not loaded)`);
    }));
    at("models").hidden = models.length < 2;
    use(talk.model ?? model);
  } catch (error) {
    complaint = error;
  }
  document.querySelector(".unmet")?.remove();
  if (complaint !== null) complain(readable(complaint)).classList.add("unmet");
}

/** Has the model of a name answer from now on, or the first one if there is none. */
function use(name) {
  const {id, edgespec, capabilities} = models.find((each) => each.id === name) ?? models[0];
  [model, chats, seesImages] = [id, edgespec.chat, capabilities.includes("images")];
  at("models").value = id;
  for (const name of ["temperature", "top_p"]) at(name).placeholder = edgespec.sampling?.[name] ?? "";
  at("for-tools").hidden = !capabilities.includes("tools");
  at("model").textContent = `${models.length > 1 ? "" : model}${chats ? "" : " (no chat template: continues your text)"}`;
}

/** Browsers say only that fetching failed. */
function readable(error) {
  return error instanceof TypeError ? `The server cannot be reached (${error.message}).` : error.message;
}

/** Returns the body of a request for what follows a node. */
function request(place) {
  const body = {model, stream: true, return_progress: true, stop_loops: true, max_tokens: -1, ...options()}, [schema] = schemaInUse(), tools = toolsInUse();
  const messages = path(talk, place).map((each) => sentAs(talk.nodes[each]));
  if (!chats) return {...body, prompt: messages.map((each) => each.content).join("")};
  if (at("system").value.trim()) messages.unshift({role: "system", content: at("system").value});
  const form = schema && {response_format: {type: "json_schema", json_schema: {name: "answer", schema}}};
  return {...body, messages, ...(tools.length && {tools}), ...form};
}

/** Yields the choices of an answer as they come, with the statistics of each. */
async function* pieces(body, signal) {
  const response = await fetch(chats ? "/v1/chat/completions" : "/v1/completions", {
    method: "POST", headers: headers(), body: JSON.stringify(body), signal,
  });
  if (!response.ok) throw new Error((await response.json()).error.message);
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    const [choice] = event.choices;
    const round = event.edgespec?.tokens ? event.edgespec : {tokens: 1, drafted: 0, rounds: 0};
    const delta = chats ? choice.delta : {content: choice.text};
    yield {delta, finish: choice.finish_reason, looped: event.edgespec?.looped, round, progress: event.prompt_progress};
  }
}

/** Adds an answer below a node, or lets the answer that is there go on. */
async function answer(place, goesOn, signal) {
  const mine = talk, speed = new Speed(), node = goesOn ? talk.nodes[place] : null;
  const got = node ? Answer.from(node.message) : new Answer();
  if (node) articleOf(place)?.remove();
  const view = new AnswerView();
  if (node) view.add(node.message);
  let failure = null, kept = node ? place : null, saved = performance.now();
  try {
    if (model === null) await meet();
    if (at("models").selectedOptions[0]?.label !== model) tell("The model is being loaded.");
    for await (const {delta, finish, looped, round, progress} of pieces(request(place), signal)) {
      if (progress) tellReading(progress);
      got.add(delta);
      got.finish = finish ?? got.finish;
      got.looped = looped ?? got.looped;
      if (talk === mine) view.add(delta, round.drafted);
      if (delta.content || delta.reasoning_content || delta.tool_calls) speed.add(round);
      if (performance.now() - saved > 1000) {  // a reload loses a second of it
        kept = keep(mine, kept, place, got);
        saved = performance.now();
      }
    }
  } catch (error) {
    failure = error;
  }
  if (!got.empty) kept = keep(mine, kept, place, got);
  if (talk !== mine) return;  // another conversation was opened
  const stopped = failure?.name === "AbortError";
  await view.end(got, got.finish !== null && got.finish !== "length");
  if (talk !== mine) return;
  if (failure !== null && got.empty) view.article.remove();
  const calls = got.complete;
  if (calls.length) askForResults(view.article, calls, (texts) => giveResults(calls, texts));
  if (failure === null) announce(spoken(got));
  else if (stopped) announce("Stopped.");
  else complain(readable(failure));
  if (got.looped) view.remark("Stopped: it repeats itself.");
  else if (got.finish === "length") view.remark("Cut at the most tokens that the settings or the context allow.");
  else if (failure === null && got.empty) view.remark("The answer is empty.");
  if (kept !== null) dress(view.article, kept);
}

/** Tells how much of a prompt the model has read. */
function tellReading({processed, total}) {
  const [read, all] = [processed, total].map((count) => count.toLocaleString());
  tell(processed < total ? `reading ${read} of ${all} tokens` : "");
}

/** Keeps what has come of an answer; returns the place of its node. */
function keep(talk, place, parent, got) {
  if (place === null) place = grow(talk, parent, got.message);
  Object.assign(talk.nodes[place], {message: got.message, finish: got.finish});
  save(talk);
  return place;
}

/** What screen readers say of an answer, once it is complete. */
function spoken(got) {
  const names = got.complete.map((call) => call.name).join(", ");
  const called = names && `The model calls ${names} and waits for the result.`;
  return [got.text, called].filter(Boolean).join(" ") || "There is no text in the answer.";
}

/** Tells how fast tokens come. */
class Speed {
  first = null;
  tokens = 0;
  rounds = 0;

  add(round) {
    if (this.first === null) {
      tell("");  // how far the prompt was read
      this.first = performance.now();
      return;
    }
    this.tokens += round.tokens;
    this.rounds += round.rounds;
    const rate = this.tokens / (performance.now() - this.first) * 1000;
    tell(`${rate.toFixed(0)} tokens/s, ${(this.tokens / Math.max(this.rounds, 1)).toFixed(2)} tokens per round`);
  }
}

/** Has a node answered, or lets the answer that it is go on. */
async function go(place, goesOn = false) {
  if (!settingsAreSound()) return;
  const mine = stopper = new AbortController();
  at("settings").open = false;
  showState(true);
  announce("");
  await answer(place, goesOn, mine.signal);
  if (stopper !== mine) return;  // another conversation was opened
  stopper = null;
  showState(false);
  if (models.length > 1) meet();  // which are loaded may have changed
}

/** Shows what can be done; a focus on what goes away moves on to what comes next. */
function showState(busy) {
  const next = busy ? at("stop") : document.querySelector(".results textarea") ?? at("text");
  const gone = busy ? [at("send"), at("retry"), at("continue")] : [at("stop"), ...(at("text").value ? [] : [at("text")])];
  const moves = [...gone, document.body].includes(document.activeElement);
  const last = talk.leaf === null ? null : talk.nodes[talk.leaf];
  const cut = last?.message.role === "assistant" && last.message.content && !last.message.tool_calls && last.finish !== "stop";
  follow(() => {
    at("stop").hidden = !busy;
    at("send").hidden = busy;
    at("retry").hidden = busy || last === null;
    at("continue").hidden = busy || !cut || !chats;
    for (const each of document.querySelectorAll(".actions button:not(.copies)")) each.disabled = busy;
  });
  if (moves) next.focus();
}

/** Adds a message of the user's, or of a tool, below the last answer. */
function add(message, more) {
  const last = talk.leaf === null ? null : talk.nodes[talk.leaf];
  // A message that got no answer is not sent again with the next.
  if (last?.message.role === "user" && message.role === "user") talk.leaf = last.parent;
  const place = grow(talk, talk.leaf, message, more);
  talk.model = model;
  talk.title ||= (more?.text || message.content || more.files[0].name).trim().split("\n")[0].slice(0, 60);
  save(talk);
  return place;
}

function giveResults(calls, texts) {
  calls.forEach(({id, name}, place) => {
    showNode(add({role: "tool", tool_call_id: id, name, content: texts[place]}));
  });
  return go(talk.leaf);
}

/** Shows a message or an answer that is complete. */
function showNode(place) {
  const {message, files = [], text} = talk.nodes[place];
  let article;
  if (message.role === "tool") article = showResult(message.name, message.content);
  else if (message.role === "user") {
    const shown = files.map(({name, image}) => image
      ? make("img", {src: image, alt: name}) : make("p", {className: "note"}, `Attached: ${name}`));
    article = show("user", "You", ...shown, make("div", {className: "mine"}, text ?? message.content));
  } else {
    const view = new AnswerView(), got = Answer.from(message);
    (message.tool_calls ?? []).forEach(({id, function: {name, arguments: given}}, index) => {
      got.add({tool_calls: [{index, id, function: {name, arguments: given}}]});
    });
    view.add({reasoning_content: message.reasoning_content, content: message.content});
    view.add({tool_calls: got.calls.map(({id, name, text}, index) => ({index, id, function: {name, arguments: text}}))});
    view.end(got, true);
    if (view.thought) view.thought.summary.textContent = "Thought";
    if (place === talk.leaf && got.complete.length) {
      askForResults(view.article, got.complete, (texts) => giveResults(got.complete, texts));
    }
    article = view.article;
  }
  dress(article, place);
  return article;
}

const articleOf = (place) => document.querySelector(`article[data-place="${place}"]`);

/** Adds what can be done with a message. */
function dress(article, place) {
  article.dataset.place = place;
  const {message, text, files = []} = talk.nodes[place], all = siblings(talk, place), number = all.indexOf(place);
  const actions = [];
  if (message.role === "assistant" && message.content) {
    actions.push(["Copy", (button) => copy(button, message.content), {className: "copies"}]);
  }
  if (message.role === "user") {
    actions.push(["Edit", () => edit(article, text ?? message.content, (edited) => {
      if (stopper || !settingsAreSound()) return;
      talk.leaf = talk.nodes[place].parent;
      grow(talk, talk.leaf, {...message, content: withFiles(edited, files)}, {text: edited, files});
      save(talk);
      showTalk();
      go(talk.leaf);
    })]);
  }
  const turn = (step, name) => [name, () => {
    goThrough(talk, all[(number + step + all.length) % all.length]);
    save(talk);
    showTalk();
  }];
  if (all.length > 1) actions.push(turn(-1, "Earlier version"), turn(1, "Later version"));
  if (!actions.length) return;
  addActions(article, ...actions);
  if (all.length > 1) article.lastChild.append(`version ${number + 1} of ${all.length}`);
}

/** Shows the whole conversation. */
function showTalk() {
  at("said").replaceChildren();
  for (const place of path(talk)) showNode(place);
  at("said").scrollTop = at("said").scrollHeight;
  tell("");
  showState(false);
  listTalks();
}

/** Leaves this conversation for another. */
function open(other) {
  stopper?.abort();
  stopper = null;
  talk = other;
  if (models.length) use(talk.model ?? model);
  remember();
  showTalk();
}

at("form").onsubmit = (event) => {
  event.preventDefault();
  const text = at("text").value, result = document.querySelector(".results textarea"), files = attached;
  if ((!text.trim() && !files.length) || stopper) return;
  if (result) {
    result.focus();
    return announce("The model waits for the result of its call.");
  }
  if (!settingsAreSound()) return;
  at("text").value = "";
  attached = [];
  showAttached();
  const place = add({role: "user", content: withFiles(text, files)}, {text, files});
  for (const each of document.querySelectorAll("#said article")) {
    if (!path(talk).includes(Number(each.dataset.place ?? -1)) && !each.matches(".error")) each.remove();
  }
  showNode(place);
  go(place);
};
at("text").onkeydown = (event) => sendByEnter(event, at("form"));
at("stop").onclick = () => stopper?.abort();
at("retry").onclick = () => {
  if (!settingsAreSound()) return;
  while (talk.nodes[talk.leaf].message.role === "assistant") talk.leaf = talk.nodes[talk.leaf].parent;
  showTalk();
  go(talk.leaf);
};
at("continue").onclick = () => go(talk.leaf, true);
at("reset").onclick = () => {
  open(newTalk());
  announce("A new chat.");
  at("text").focus();
};
at("key").onchange = meet;
at("models").onchange = () => {
  talk.model = at("models").value;
  use(talk.model);
  if (talk.nodes.length) save(talk);
};
document.onkeydown = (event) => {
  if (event.key !== "Escape" || event.isComposing) return;
  if (stopper) return stopper.abort();
  if (document.body.classList.contains("listed")) return showList(false);
  if (!at("settings").open) return;
  at("settings").open = false;
  at("settings").firstElementChild.focus();
};
