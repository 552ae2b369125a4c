// The conversation: asking, stopping, trying again, editing and giving results of calls.

let store = null, talk = newTalk();

/** Has a node answered, or lets the answer that it is go on. */
async function go(place, goesOn = false) {
  if (!settingsAreSound()) return;
  at("settings").open = false;
  if (goesOn) articleOf(place)?.remove();
  const reply = new Reply(talk, place, goesOn);
  underWay.set(talk.id, reply);
  showState();
  announce("");
  await reply.run();
  if (underWay.get(reply.talk.id) === reply) underWay.delete(reply.talk.id);  // a call may have followed
  if (reply.talk === talk) showState();
  listTalks();
  if (models.length > 1) meet();  // which are loaded may have changed
}

/** Shows what can be done; a focus on what goes away moves on to what comes next. */
function showState() {
  const busy = underWay.has(talk.id);
  const next = busy ? at("stop") : document.querySelector(".results :is(textarea, button)") ?? at("text");
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

/** Shows a message or an answer that is complete. */
function showNode(place) {
  const {message, files = [], text} = talk.nodes[place];
  let article;
  if (message.role === "tool") article = showResult(message.name, message.content, files);
  else if (message.role === "user") {
    const shown = files.map(({name, image}) => image
      ? make("img", {src: image, alt: name}) : make("p", {className: "note"}, `Attached: ${name}`));
    article = show("user", "You", ...shown, make("div", {className: "mine"}, text ?? message.content));
  } else {
    const view = new AnswerView(), got = Answer.from(message);
    got.add({tool_calls: message.tool_calls?.map((call, index) => ({index, ...call}))});
    view.add({reasoning_content: message.reasoning_content, content: message.content});
    view.add({tool_calls: message.tool_calls?.map((call, index) => ({index, ...call}))});
    view.end(got, true);
    if (view.thought) view.thought.summary.textContent = "Thought";
    if (place === talk.leaf && got.complete.length) offerResults(view.article, got.complete, place);
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
      if (underWay.has(talk.id) || !settingsAreSound()) return;
      talk.leaf = talk.nodes[place].parent;
      grow(talk, talk.leaf, {...message, content: withFiles(edited, files)}, {text: edited, files});
      save(talk);
      showTalk();
      go(talk.leaf);
    })]);
  }
  const turn = (step, sign, name) => [sign, () => {
    const other = all[(number + step + all.length) % all.length];
    goThrough(talk, other);
    save(talk);
    showTalk();
    articleOf(other).querySelector(`[title="${name}"]`).focus();
  }, {ariaLabel: name, title: name}];
  if (all.length > 1) actions.push(turn(-1, "←", "Earlier version"), `${number + 1} / ${all.length}`, turn(1, "→", "Later version"));
  if (actions.length) addActions(article, ...actions);
}

/** Shows the whole conversation, and the answer that is under way there. */
function showTalk() {
  const reply = underWay.get(talk.id);
  at("said").replaceChildren();
  for (const place of path(talk)) if (place !== reply?.place) showNode(place);
  if (reply) at("said").append(reply.view.article);
  greet();
  at("said").scrollTop = at("said").scrollHeight;
  tell(reply?.facts ?? "");
  showState();
  listTalks();
}

/** Shows a message of this conversation, perhaps of another version of it. */
function showPlace(place) {
  if (!path(talk).includes(place) && !underWay.has(talk.id)) {
    goThrough(talk, place);
    showTalk();
  }
  articleOf(place)?.scrollIntoView({block: "center"});
}

/** Shows what another tab changed in this conversation; what it did not change stays as it is. */
function showChanged(before) {
  const facts = (talk, place) => JSON.stringify([talk.nodes[place], siblings(talk, place), place === talk.leaf]);
  const old = path(before), now = path(talk);
  const changed = now.findIndex((place, number) => place !== old[number] || facts(before, place) !== facts(talk, place));
  const kept = changed < 0 ? now : now.slice(0, changed);
  follow(() => {
    for (const article of [...at("said").children]) if (!kept.includes(Number(article.dataset.place))) article.remove();
    for (const place of now.slice(kept.length)) showNode(place);
  });
  showState();
}

const TO_TRY = {
  chat: [
    "Explain what a hash table is, with a small example.",
    "Write a friendly e-mail that moves our meeting to Friday.",
    "Compare three ways to cook potatoes, as a table.",
  ],
  text: ["def is_prime(n):\n", "class Stack:\n", "Once upon a time"],
};

/** Says in an empty chat which model answers, and what to try. */
function greet() {
  document.querySelector(".greeting")?.remove();
  if (model === null || talk.nodes.length) return;
  const examples = TO_TRY[chats ? "chat" : "text"].map((text) => {
    const onclick = () => {
      at("text").value = text;
      at("form").requestSubmit();
    };
    return make("button", {type: "button", onclick}, text.trim());
  });
  const name = make("h2", {}, model), does = chats ? "answers on your own machine. Ask anything, or try" : "goes on with your text. Try";
  at("said").append(make("div", {className: "greeting"}, name, make("p", {}, does), ...examples));
}

/** Looks at another conversation. */
function open(other) {
  talk = other;
  if (models.length) use(talk.model ?? model);
  showAddress();
  showTalk();
}

at("form").onsubmit = (event) => {
  event.preventDefault();
  const text = at("text").value, result = document.querySelector(".results :is(textarea, button)"), files = attached;
  if ((!text.trim() && !files.length) || underWay.has(talk.id)) return;
  if (result) {
    result.focus();
    return announce("The model waits for the result of its call.");
  }
  if (!settingsAreSound()) return;
  at("text").value = "";
  attached = [];
  showAttached();
  showProblem("");
  const place = add({role: "user", content: withFiles(text, files)}, {text, files});
  for (const each of document.querySelectorAll("#said article")) {
    if (!path(talk).includes(Number(each.dataset.place ?? -1))) each.remove();  // what was refused goes away
  }
  greet();
  showNode(place);
  go(place);
};
at("text").onkeydown = (event) => sendByEnter(event, at("form"));
if (!CSS.supports("field-sizing", "content")) {
  at("text").oninput = ({target}) => {
    target.style.height = "auto";
    target.style.height = `${target.scrollHeight + 2}px`;
  };
}
at("stop").onclick = () => underWay.get(talk.id).stop();
at("retry").onclick = () => {
  if (!settingsAreSound()) return;
  while (talk.nodes[talk.leaf].message.role === "assistant") talk.leaf = talk.nodes[talk.leaf].parent;
  showTalk();
  go(talk.leaf);
};
at("continue").onclick = () => go(talk.leaf, true);
at("reset").onclick = () => {
  goTo(newTalk());
  announce("A new chat.");
  at("text").focus();
};
at("models").onchange = () => {
  talk.model = at("models").value;
  use(talk.model);
  if (talk.nodes.length) save(talk);
};
