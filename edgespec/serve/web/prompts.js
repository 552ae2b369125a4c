// System prompts that are kept by their names, beside some to begin with.

const PROMPTS = "edgespec.prompts";
const FIRST_PROMPTS = {
  "Short answers": "Answer in at most three sentences. Give no introduction and no summary.",
  "Tutor": "You are a patient teacher. Explain step by step, ask one question at a time, and let me find the answer.",
  "Code reviewer": "You review code. Name faults first, then what is hard to read, each with its line and a better version.",
  "Translator": "Translate what I write into English, or into German if it is English. Answer with the translation alone.",
};
let prompts = {...FIRST_PROMPTS};

try {
  const held = JSON.parse(localStorage.getItem(PROMPTS));
  if (isObject(held) && Object.values(held).every(isText)) prompts = held;
} catch {}

/** Lists the prompts, and shows which of them is in use. */
function listPrompts() {
  const names = Object.keys(prompts).sort((one, other) => one.localeCompare(other));
  const used = names.find((name) => prompts[name] === at("system").value) ?? "";
  at("prompts").replaceChildren(make("option", {value: ""}, "Choose one"), ...names.map((name) => make("option", {value: name}, name)));
  at("prompts").value = at("prompt-name").value = used;
  at("forget").hidden = !used;
}

/** Changes the prompts, and keeps them in the browser. */
function changePrompts(change) {
  change();
  try {
    localStorage.setItem(PROMPTS, JSON.stringify(prompts));
  } catch {}  // as with settings
  listPrompts();
}

at("prompts").onchange = () => {
  at("system").value = prompts[at("prompts").value] ?? "";
  at("system").onchange();
  listPrompts();
};
at("keep").onclick = () => {
  const name = at("prompt-name").value.trim() || at("system").value.trim().split("\n")[0].slice(0, 40);
  if (!name) return at("system").focus();
  changePrompts(() => { prompts[name] = at("system").value; });
  announce(`${name} is kept.`);
};
at("forget").onclick = () => {
  changePrompts(() => { delete prompts[at("prompts").value]; });
  at("prompts").focus();
};
at("system").addEventListener("change", listPrompts);
listPrompts();
