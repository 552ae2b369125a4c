// What keys do.

/** What a press asks for outside of any control: a name, or nothing. */
function action(event) {
  if (event.isComposing) return "";
  const command = event.ctrlKey || event.metaKey;
  if (event.key === "Escape") return event.shiftKey ? "write" : "leave";
  if (command && !event.shiftKey && event.key.toLowerCase() === "k") return "search";
  if (command && event.shiftKey && event.key.toLowerCase() === "o") return "new";
  const writes = event.target.matches("input, textarea, select");
  return event.key === "?" && !command && !writes ? "help" : "";
}

const KEYS = {
  /** Ends what is under way or in front. */
  leave() {
    if (underWay.has(talk.id)) return underWay.get(talk.id).stop();
    if (document.body.classList.contains("listed")) return showList(false);
    if (!at("settings").open) return;
    at("settings").open = false;
    at("settings").firstElementChild.focus();
  },
  write: () => at("text").focus(),
  search: () => showList(true),
  new: () => at("reset").click(),
  help: () => at("help").showModal(),
};

document.onkeydown = (event) => {
  if (at("help").open) return;  // which Escape closes
  const name = action(event);
  if (!name) return;
  if (name !== "leave") event.preventDefault();
  KEYS[name]();
};
at("show-help").onclick = KEYS.help;
