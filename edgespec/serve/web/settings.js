// The settings, which the browser keeps but for the key.

const KEPT = "edgespec.settings";
const FIELDS = ["system", "temperature", "top_p", "seed", "tokens", "schema", "tools", "shift", "drafts"];
const NAME = /^[a-zA-Z0-9_.-]{1,128}$/;

const headers = () => {
  const key = at("key").value;
  return {"content-type": "application/json", ...(key && {authorization: `Bearer ${key}`})};
};

/** Returns the options of a request that are not empty. */
function options() {
  const names = {temperature: "temperature", top_p: "top_p", seed: "seed", tokens: "max_tokens"};
  const given = Object.keys(names).filter((id) => at(id).value !== "");
  return Object.fromEntries(given.map((id) => [names[id], Number(at(id).value)]));
}

/** Returns the value of a JSON text. Throws an error that says what is wrong with it. */
function readJson(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`This is no JSON: ${error.message}.`);
  }
}

/** Returns the tools of a text. Throws an error that says what is wrong with it. */
function readTools(text) {
  if (!text.trim()) return [];
  const tools = readJson(text);
  if (!Array.isArray(tools)) throw new Error("Tools are a list: put them between [ and ].");
  const names = tools.map((tool, place) => checked(tool, place + 1));
  const twice = names.find((name, place) => names.indexOf(name) < place);
  if (twice !== undefined) throw new Error(`Two tools have the name "${twice}": rename one.`);
  return tools;
}

/** Returns the name of a tool. */
function checked(tool, number) {
  if (tool?.type !== "function" || !isObject(tool.function)) {
    throw new Error(`Tool ${number} is no function: write {"type": "function", "function": {"name": …}}.`);
  }
  const {name, parameters} = tool.function;
  if (typeof name !== "string" || !NAME.test(name)) {
    const found = name === undefined ? "is missing" : `is ${JSON.stringify(name)}`;
    throw new Error(`The name of tool ${number} ${found}: use up to 128 letters, digits, _, - and .`);
  }
  if (parameters !== undefined && !isObject(parameters)) {
    throw new Error(`The parameters of "${name}" are no JSON schema: write {"type": "object", "properties": {…}}.`);
  }
  return name;
}

/** Returns the schema of a text; nothing if it is empty. */
function readSchema(text) {
  if (!text.trim()) return [];
  const schema = readJson(text);
  if (!isObject(schema)) throw new Error('A schema is an object: write {"type": …}.');
  return [schema];
}

/** Returns what a field holds; null if it cannot be used, which is then told there. */
function inUse(id, readField) {
  let found = null, problem = "";
  try {
    found = readField(at(id).value);
  } catch (error) {
    problem = error.message;
  }
  at(`${id}-problem`).textContent = problem;
  at(id).setAttribute("aria-invalid", String(found === null));
  return found;
}

const toolsInUse = () => at("for-tools").hidden ? [] : inUse("tools", readTools);
const schemaInUse = () => inUse("schema", readSchema);

/** Opens the settings at the first field that is wrong; returns whether all can be used. */
function settingsAreSound() {
  const wrong = toolsInUse() === null ? "tools" : schemaInUse() === null ? "schema" : null;
  if (wrong) openSettings(wrong);
  return wrong === null;
}

/** Opens the settings at a field. */
function openSettings(id) {
  at("settings").open = true;
  at(id).focus();
}

const value = (field) => field.type === "checkbox" ? "checked" : "value";
for (const id of FIELDS) {
  at(id).onchange = () => {
    if (id === "tools") toolsInUse();
    if (id === "schema") schemaInUse();
    const held = FIELDS.map((each) => [each, at(each)[value(at(each))]]);
    try {
      localStorage.setItem(KEPT, JSON.stringify(Object.fromEntries(held)));
    } catch {}  // a browser may forbid it; then they last as long as the page
  };
}
try {
  const held = JSON.parse(localStorage.getItem(KEPT)) ?? {};
  for (const id of FIELDS) if (id in held) at(id)[value(at(id))] = held[id];
} catch {}
