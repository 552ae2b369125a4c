// Tools that the server has from servers of MCP: offered to the model, asked about, called and shown.

const TOOLS_OFF = "edgespec.tools.off";
let served = null, mostCalls = 0;  // nothing is known yet
const allowed = new Set(), off = new Set();  // names: called without asking while the page is open, not offered

let tellTools = null;
const toolsAreKnown = new Promise((resolve) => { tellTools = resolve; });

/** Asks the server for its tools, and lists them in the settings. */
async function meetTools() {
  const response = await fetch("tools", {headers: headers()});
  const found = response.ok ? await response.json() : {tools: [], most_calls: 0};
  [served, mostCalls] = [found.tools, found.most_calls];
  tellTools();
  at("served").hidden = !served.length;
  at("served-tools").replaceChildren(...served.map(listedTool));
}

/** Returns the entry of a tool, by which it can be left out. */
function listedTool({function: {name, description}, server}) {
  const box = make("input", {type: "checkbox", checked: !off.has(name)});
  box.onchange = () => {
    if (box.checked) off.delete(name);
    else off.add(name);
    try {
      localStorage.setItem(TOOLS_OFF, JSON.stringify([...off]));
    } catch {}
  };
  return make("label", {className: "check", title: description}, box, `${name}, of ${server}`);
}

const servedTool = (name) => served?.find((tool) => tool.function.name === name && !off.has(name));

/** Returns the fields of a request that offer tools to the model: those of the settings, and the server's. */
function offeredTools(talk, place) {
  if (at("for-tools").hidden) return {};
  const own = toolsInUse(), names = own.map((tool) => tool.function.name);
  const others = (served ?? []).filter(({function: {name}}) => !off.has(name) && !names.includes(name));
  const tools = [...own, ...others.map(({type, function: described}) => ({type, function: described}))];
  if (!tools.length) return {};
  return {tools, ...(others.length && callsBefore(talk, place) >= mostCalls && {tool_choice: "none"})};
}

/** Returns how many calls there were since the last message of the user's. */
function callsBefore(talk, place) {
  const roles = path(talk, place).map((each) => talk.nodes[each].message.role);
  return roles.slice(roles.lastIndexOf("user")).filter((role) => role === "tool").length;
}

/** Has the calls of a node answered, by the server's tools or by the user, and goes on with the results. */
async function offerResults(article, calls, place, fresh = false) {
  const mine = talk, results = new Map();
  if (served === null) await toolsAreKnown;
  if (!article.isConnected) return;
  for (const [number, call] of calls.entries()) {
    if (!servedTool(call.name)) continue;
    const fold = article.querySelectorAll("details.call")[number];
    const found = await resultOf({article, fold, place}, call, fresh);
    if (found === null) return;  // it is no longer there
    results.set(call, found);
  }
  const others = calls.filter((call) => !results.has(call));
  const end = (texts) => {
    others.forEach((call, number) => results.set(call, {text: texts[number], images: []}));
    giveResults(mine, place, calls.map((call) => [call, results.get(call)]));
  };
  if (others.length) askForResults(article, others, end);
  else end([]);
}

/** Adds results below the answer that called, and goes on if it is what is looked at. */
function giveResults(mine, place, results) {
  const known = mine.nodes.length;
  mine.leaf = place;
  for (const [{id, name}, {text, images}] of results) {
    const files = images.map((image, number) => ({name: `image ${number + 1}`, image}));
    grow(mine, mine.leaf, {role: "tool", tool_call_id: id, name, content: text}, files.length ? {files} : {});
  }
  save(mine);
  if (mine !== talk) return;
  for (let each = known; each < mine.nodes.length; each += 1) showNode(each);
  if (results.some(([, {stopped}]) => stopped)) showState();
  else go(mine.leaf);
}

/** Returns what came of a call, once it is allowed; null if it is shown no longer. */
async function resultOf(shown, call, fresh) {
  const tool = servedTool(call.name);
  if (!(fresh && (tool.allowed || allowed.has(call.name)))) {
    const said = await askWhether(shown, call);
    if (said === null) return null;
    if (said === "no") return {text: "It was not called: the user does not allow it.", images: []};
    if (said === "always") allowed.add(call.name);
  }
  const run = new ToolRun(shown);
  underWay.set(talk.id, run);
  showState();
  announce(`${call.name} is called.`);
  const found = await run.result(call);
  underWay.delete(run.id);
  return found;
}

/** Asks whether a call may be made: `yes`, `no` or `always`; null if the answer is shown no longer. */
function askWhether({article, fold}, {name}) {
  fold.open = true;  // what is allowed is seen
  return new Promise((resolve) => {
    const choice = (label, said) => make("button", {type: "button", onclick: () => {
      form.remove();
      gone.disconnect();
      resolve(said);
    }}, label);
    const buttons = make("p", {className: "row"}, choice("Call", "yes"), choice("Don't call", "no"), choice("Always call", "always"));
    const form = make("form", {className: "results", ariaLabel: `May ${name} be called?`}, make("p", {}, `Call ${name}?`), buttons);
    const gone = new MutationObserver(() => {
      if (form.isConnected) return;
      gone.disconnect();
      resolve(null);
    });
    follow(() => article.append(form));
    gone.observe(at("said"), {childList: true});
    showState();
    announce(`May ${name} be called?`);
  });
}

/** A call under way, which can be stopped like an answer. */
class ToolRun {
  facts = "";
  id = talk.id;
  #stopper = new AbortController();

  constructor({article, place}) {
    this.view = {article};
    this.place = place;
  }

  stop() {
    this.#stopper.abort();
  }

  async result({name, text}) {
    tell(this.facts = `${name} is called …`);
    try {
      const response = await fetch("tools/call", {
        method: "POST", headers: headers(), body: JSON.stringify({model, name, arguments: parsed(text)}), signal: this.#stopper.signal,
      });
      const found = await response.json();
      if (!response.ok) throw new Error(found.error.message);
      return found;
    } catch (error) {
      if (error.name === "AbortError") return {text: "The user has stopped the call.", images: [], stopped: true};
      return {text: `The call has failed: ${readable(error)}`, images: []};
    } finally {
      tell("");
    }
  }
}

/** Shows the result of a call, folded. */
function showResult(name, text, files = []) {
  const images = files.map(({name, image}) => make("img", {src: image, alt: name}));
  const summary = make("summary", {}, `Result of ${name}: ${text.trim().split("\n")[0].slice(0, 60)}`);
  const fold = make("details", {className: "call"}, summary, make("pre", {}, text));
  return show("user", `Result of ${name}`, fold, ...images);
}

try {
  for (const name of JSON.parse(localStorage.getItem(TOOLS_OFF)) ?? []) off.add(name);
} catch {}
