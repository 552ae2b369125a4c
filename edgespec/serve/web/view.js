// What is shown of a conversation. Texts go into the page as texts, or as the server renders them.

const at = (id) => document.getElementById(id);

/** Creates an element with some properties and children. */
function make(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/** Changes the conversation; who reads its end goes on to see the end. */
function follow(change) {
  const said = at("said"), reads = said.scrollHeight - said.scrollTop - said.clientHeight < 40;
  const result = change();
  if (reads) said.scrollTop = said.scrollHeight;
  return result;
}

/** Adds an article to the conversation. */
function show(kind, label, ...children) {
  const article = make("article", {className: kind, ariaLabel: label}, ...children);
  follow(() => at("said").append(article));
  return article;
}

/** Shows an error, which screen readers read out at once. */
function complain(message) {
  const article = show("error", "Error");
  article.role = "alert";
  article.textContent = message;
  return article;
}

/** Has screen readers say something when they are done with what they read. */
function announce(text) {
  at("status").textContent = text;
}

function tell(facts) {
  at("facts").textContent = facts;
  at("legend").hidden = !facts || !at("drafts").checked;
}

function seconds(milliseconds) {
  const all = milliseconds / 1000;
  if (all < 10) return `${all.toFixed(1)} s`;
  return all < 60 ? `${all.toFixed(0)} s` : `${Math.floor(all / 60)} min ${Math.floor(all % 60)} s`;
}

/** Copies a text, and says so on the button for a while. */
async function copy(button, text) {
  const name = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {  // a page without https may not
    const field = make("textarea", {value: text});
    document.body.append(field);
    field.select();
    button.textContent = document.execCommand("copy") ? "Copied" : "Not allowed";
    field.remove();
  }
  setTimeout(() => { button.textContent = name; }, 1500);
}

/** Adds small buttons below a message: `[name, action, properties]` each, or a text between them. */
function addActions(article, ...actions) {
  const buttons = actions.map((each) => {
    if (typeof each === "string") return make("span", {}, each);
    const [name, action, more] = each;
    const button = make("button", {type: "button", ...more}, name);
    button.onclick = () => action(button);
    return button;
  });
  follow(() => article.append(make("p", {className: "actions"}, ...buttons)));
}

/** An answer in the conversation, which grows. */
class AnswerView {
  constructor() {
    this.article = show("assistant", "Answer");
    this.article.ariaBusy = "true";
    this.thought = this.text = this.rendered = this.progress = null;
    this.calls = [];
    this.since = null;  // when the reasoning began that has not ended
    this.thoughtFor = 0;  // milliseconds
  }

  /** Whether its conversation is looked at. */
  get shown() {
    return this.article.isConnected;
  }

  /** Adds a delta, the first characters of whose text were drafted. */
  add(delta, drafted = 0) {
    follow(() => {
      if (delta.reasoning_content || delta.content || delta.tool_calls) this.progress?.remove();
      if (delta.reasoning_content) this.#think(delta.reasoning_content);
      if (delta.content) this.#say(delta.content, drafted);
      for (const call of delta.tool_calls ?? []) this.#call(call);
    });
  }

  /** Shows how much of the prompt was read, until something comes. */
  read({processed, total}) {
    follow(() => {
      if (this.progress === null) this.article.append(this.progress = make("progress", {ariaLabel: "Prompt read"}));
      Object.assign(this.progress, {max: total, value: processed});
    });
  }

  /** Ends the answer; `whole` if it ended by itself. */
  async end(answer, whole) {
    await this.rendered?.end();
    follow(() => {
      this.progress?.remove();
      this.#thoughtEnds(whole ? "" : ", unfinished");
      this.article.ariaBusy = "false";
      answer.calls.forEach(({name, text}, place) => {
        const call = this.calls[place], complete = answer.complete.includes(answer.calls[place]);
        call.summary.textContent = `${complete ? "Call" : "Unfinished call"} of ${name}`;
        if (complete) call.shown.textContent = indented(text);
      });
    });
  }

  /** Adds a remark that is no part of the answer. */
  remark(text) {
    follow(() => this.article.append(make("p", {className: "note"}, text)));
  }

  #fold(kind, content) {
    const summary = make("summary");
    const details = make("details", {className: kind}, summary, content);
    this.article.append(details);
    return {summary, shown: content};
  }

  #think(piece) {
    this.thought ??= this.#fold("thought", make("div"));
    this.thought.shown.append(piece);
    if (this.since !== null) return;
    this.since = performance.now();
    this.thought.summary.textContent = "Thinking …";
    if (this.shown) announce("The model thinks.");
  }

  #thoughtEnds(remark) {
    if (this.since === null) return;
    this.thoughtFor += performance.now() - this.since;
    this.since = null;
    this.thought.summary.textContent = `Thought for ${seconds(this.thoughtFor)}${remark}`;
  }

  #say(piece, drafted) {
    this.#thoughtEnds("");
    if (this.text === null) {
      this.article.append(this.text = make("div", {className: "text"}));
      if (at("drafts").checked) this.text.classList.add("plain");
      else this.rendered = new Rendered(this.text);
    }
    if (this.rendered) return this.rendered.add(piece);
    const letters = Array.from(piece);
    this.#span(letters.slice(0, drafted).join(""), "drafted");
    this.#span(letters.slice(drafted).join(""), "");
  }

  #span(text, className) {
    if (!text) return;
    const last = this.text.lastChild;
    if (last?.className === className) last.append(text);
    else this.text.append(make("span", {className}, text));
  }

  #call({index, function: piece}) {
    this.#thoughtEnds("");
    const call = this.calls[index] ??= this.#fold("call", make("pre"));
    if (piece.name) call.summary.textContent = `Writing a call of ${piece.name} …`;
    call.shown.append(piece.arguments ?? "");
  }
}

/** Asks for the results of calls; hands them to `send` in their order. */
function askForResults(article, calls, send) {
  const fields = calls.map(() => make("textarea", {rows: 2, required: true}));
  const labels = calls.map(({name}, place) => {
    const number = calls.length > 1 ? ` (call ${place + 1})` : "";
    return make("label", {}, `Result of ${name}${number}`, fields[place]);
  });
  const button = make("button", {}, calls.length > 1 ? "Send results" : "Send result");
  const form = make("form", {className: "results", ariaLabel: "Results of calls"}, ...labels, button);
  form.onsubmit = (event) => {
    event.preventDefault();
    form.remove();
    send(fields.map((field) => field.value));
  };
  for (const field of fields) field.onkeydown = (event) => sendByEnter(event, form);
  follow(() => article.append(form));
}

/** Lets a message be written anew in its place; hands it to `send`. */
function edit(article, text, send) {
  const shown = [...article.childNodes];
  const field = make("textarea", {rows: Math.min(12, text.split("\n").length + 1), value: text, ariaLabel: "Edited message"});
  const leave = () => {
    article.replaceChildren(...shown);
    article.querySelector(".actions button").focus();
  };
  const cancel = make("button", {type: "button", onclick: leave}, "Cancel");
  const form = make("form", {className: "edited", ariaLabel: "Edit the message"}, field, make("p", {className: "row"}, make("button", {}, "Send"), cancel));
  form.onsubmit = (event) => {
    event.preventDefault();
    if (field.value.trim()) send(field.value);
  };
  field.onkeydown = (event) => {
    sendByEnter(event, form);
    if (event.key !== "Escape" || event.isComposing) return;
    event.stopPropagation();
    leave();
  };
  article.replaceChildren(form);
  field.focus();
}

/** Enter sends a form, Shift+Enter starts a new line. */
function sendByEnter(event, form) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
}

document.addEventListener("click", ({target}) => {
  if (target.matches(".text .copy")) copy(target, target.closest("figure").querySelector("code").textContent);
});
