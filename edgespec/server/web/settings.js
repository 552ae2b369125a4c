// The settings, and the tools among them, which the browser keeps.

const TOOLS = "edgespec.tools";
const NAME = /^[a-zA-Z0-9_-]{1,64}$/;

const headers = () => {
  const key = at("key").value;
  return {"content-type": "application/json", ...(key && {authorization: `Bearer ${key}`})};
};

/** Returns the tools of a text. Throws an error that says what is wrong with it. */
function readTools(text) {
  if (!text.trim()) return [];
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new Error(`This is no JSON: ${error.message}.`);
  }
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
    throw new Error(`The name of tool ${number} ${found}: use up to 64 letters, digits, _ and -.`);
  }
  if (parameters !== undefined && !isObject(parameters)) {
    throw new Error(`The parameters of "${name}" are no JSON schema: write {"type": "object", "properties": {…}}.`);
  }
  return name;
}

/** Returns the tools of the settings; null if they cannot be used, which is then told there. */
function toolsInUse() {
  if (at("tools").disabled) return [];
  let tools = null, problem = "";
  try {
    tools = readTools(at("tools").value);
  } catch (error) {
    problem = error.message;
  }
  at("tools-problem").textContent = problem;
  at("tools").setAttribute("aria-invalid", String(tools === null));
  return tools;
}

/** Opens the settings at a field. */
function openSettings(id) {
  at("settings").open = true;
  at(id).focus();
}

/** Says in the settings whether the model can call tools. */
function allowTools(allowed) {
  at("tools").disabled = !allowed;
  if (!allowed) at("tools-hint").textContent = "The chat template of this model knows no tools.";
}

at("tools").onchange = () => {
  toolsInUse();
  try {
    localStorage.setItem(TOOLS, at("tools").value);
  } catch {}  // a browser may forbid it; then they last as long as the page
};
try {
  at("tools").value = localStorage.getItem(TOOLS) ?? "";
} catch {}
