// The conversation: asking, stopping, trying again and giving results of calls.

let model = null, chats = true, stopper = null;
let talk = {messages: [], asked: null};  // `asked`: the article that the last answer follows

/** Asks the server for its model. */
async function meet() {
  let complaint = null;
  try {
    const response = await fetch("/v1/models", {headers: headers()});
    at("key-label").hidden = response.status !== 401 && !at("key").value;
    if (response.status === 401) openSettings("key");
    if (!response.ok) throw new Error((await response.json()).error.message);
    const found = (await response.json()).data[0];
    [model, chats] = [found.id, found.edgespec.chat];
    at("temperature").placeholder = found.edgespec.sampling.temperature;
    allowTools(found.capabilities.includes("tools"));
    at("model").textContent = `${model}${chats ? "" : " (no chat template: continues your text)"}`;
  } catch (error) {
    complaint = error;
  }
  document.querySelector(".unmet")?.remove();
  if (complaint !== null) complain(readable(complaint)).classList.add("unmet");
}

/** Browsers say only that fetching failed. */
function readable(error) {
  return error instanceof TypeError ? `The server cannot be reached (${error.message}).` : error.message;
}

function request() {
  const body = {model, stream: true, max_tokens: Number(at("tokens").value || -1)};
  if (at("temperature").value) body.temperature = Number(at("temperature").value);
  if (!chats) return {...body, prompt: talk.messages.map((each) => each.content).join("")};
  const tools = toolsInUse();
  return {...body, messages: talk.messages, ...(tools?.length && {tools})};
}

/** Yields the choices of an answer as they come, with the statistics of each. */
async function* pieces(signal) {
  const response = await fetch(chats ? "/v1/chat/completions" : "/v1/completions", {
    method: "POST", headers: headers(), body: JSON.stringify(request()), signal,
  });
  if (!response.ok) throw new Error((await response.json()).error.message);
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    const [choice] = event.choices;
    const round = event.edgespec?.tokens ? event.edgespec : {tokens: 1, drafted: 0, rounds: 0};
    yield {delta: chats ? choice.delta : {content: choice.text}, finish: choice.finish_reason, round};
  }
}

/** Adds an answer to the conversation. */
async function answer() {
  const mine = talk, view = new AnswerView(), got = new Answer(), speed = new Speed();
  let failure = null;
  try {
    if (model === null) await meet();
    for await (const {delta, finish, round} of pieces(stopper.signal)) {
      got.add(delta);
      got.finish = finish ?? got.finish;
      view.add(delta, round.drafted);
      if (delta.content || delta.reasoning_content || delta.tool_calls) speed.add(round);
    }
  } catch (error) {
    failure = error;
  }
  if (talk !== mine) return;  // a new conversation was started
  const stopped = failure?.name === "AbortError";
  view.end(got, got.finish !== null && got.finish !== "length");
  if (failure !== null && got.empty) view.article.remove();
  else talk.messages.push(got.message);
  const calls = got.complete;
  if (calls.length) askForResults(view.article, calls, (texts) => giveResults(calls, texts));
  if (failure === null) announce(spoken(got));
  else if (stopped) announce("Stopped.");
  else complain(readable(failure));
  if (got.finish === "length") view.remark("Cut at the most tokens that the settings or the context allow.");
  else if (failure === null && got.empty) view.remark("The answer is empty.");
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
      this.first = performance.now();
      return;
    }
    this.tokens += round.tokens;
    this.rounds += round.rounds;
    const rate = this.tokens / (performance.now() - this.first) * 1000;
    tell(`${rate.toFixed(0)} tokens/s, ${(this.tokens / Math.max(this.rounds, 1)).toFixed(2)} tokens per round`);
  }
}

/** Has the last message answered. */
async function go() {
  stopper = new AbortController();
  at("settings").open = false;
  showState(true);
  announce("");
  await answer();
  stopper = null;
  showState(false);
}

/** Shows what can be done; a focus on what goes away moves on to what comes next. */
function showState(busy) {
  const next = busy ? at("stop") : document.querySelector(".results textarea") ?? at("text");
  const gone = busy ? [at("send"), at("retry")] : [at("stop"), ...(at("text").value ? [] : [at("text")])];
  const moves = [...gone, document.body].includes(document.activeElement);
  follow(() => {
    at("stop").hidden = !busy;
    at("send").hidden = busy;
    at("retry").hidden = busy || talk.asked === null;
  });
  if (moves) next.focus();
}

/** Sends messages of the user's, or of tools, and has them answered. */
function ask(article, ...messages) {
  // A message that got no answer is not sent again with the next.
  if (talk.messages.at(-1)?.role === "user") talk.messages.pop();
  talk.messages.push(...messages);
  talk.asked = article;
  return go();
}

function giveResults(calls, texts) {
  const articles = calls.map((call, place) => showResult(call.name, texts[place]));
  const messages = calls.map(
    ({id, name}, place) => ({role: "tool", tool_call_id: id, name, content: texts[place]}));
  return ask(articles.at(-1), ...messages);
}

at("form").onsubmit = (event) => {
  event.preventDefault();
  const text = at("text").value, open = document.querySelector(".results textarea");
  if (!text.trim() || stopper) return;
  if (open) {
    open.focus();
    return announce("The model waits for the result of its call.");
  }
  if (toolsInUse() === null) return openSettings("tools");
  at("text").value = "";
  ask(show("user", "You", text), {role: "user", content: text});
};
at("text").onkeydown = (event) => sendByEnter(event, at("form"));
at("stop").onclick = () => stopper?.abort();
at("retry").onclick = () => {
  if (toolsInUse() === null) return openSettings("tools");
  while (talk.messages.at(-1)?.role === "assistant") talk.messages.pop();
  while (at("said").lastElementChild !== talk.asked) at("said").lastElementChild.remove();
  go();
};
at("reset").onclick = () => {
  talk = {messages: [], asked: null};
  stopper?.abort();
  at("said").replaceChildren();
  at("retry").hidden = true;
  tell("");
  announce("A new chat.");
  at("text").focus();
};
at("key").onchange = meet;
document.onkeydown = (event) => {
  if (event.key !== "Escape" || event.isComposing) return;
  if (stopper) return stopper.abort();
  if (!at("settings").open) return;
  at("settings").open = false;
  at("settings").firstElementChild.focus();
};
meet();
