// The list of conversations: opening, finding, naming, deleting, exporting and importing them.

const OPENED = "edgespec.opened";

/** Keeps a conversation as it is now. */
function save(changed) {
  changed.changed = Date.now();
  store?.put(changed).catch((error) => complain(`The browser does not keep this chat (${error.message}).`));
  remember();
  listTalks();
}

/** Lets a reload come back to this conversation. */
function remember() {
  try {
    sessionStorage.setItem(OPENED, talk.id);
  } catch {}
}

function remembered() {
  try {
    return store.talks.get(sessionStorage.getItem(OPENED));
  } catch {}
}

function showList(shown) {
  document.body.classList.toggle("listed", shown);
  at("list").ariaExpanded = String(shown);
  (shown ? at("search") : at("list")).focus();
}

/** Lists the conversations that are searched for; the focus in the list stays where it is. */
function listTalks() {
  if (store === null || at("found").querySelector("input, .asks")) return;
  const focus = document.activeElement, entry = focus.closest("#found li");
  const place = entry && [...entry.children].indexOf(focus);
  const wanted = at("search").value.toLowerCase();
  const has = ({title, nodes}) => [title, ...nodes.map((node) => node.message.content)].some((text) => text.toLowerCase().includes(wanted));
  at("found").replaceChildren(...store.sorted.filter(has).map(listed));
  if (entry) [...at("found").children].find(({dataset}) => dataset.id === entry.dataset.id)?.children[place].focus();
}

/** Returns the entry of a conversation. */
function listed(each) {
  const name = each.title || "Untitled";
  const button = (text, label, action) => make("button", {type: "button", ariaLabel: `${label} ${name}`, title: label, onclick: action}, text);
  const entry = make("li", {className: each.id === talk.id ? "current" : ""});
  entry.dataset.id = each.id;
  const opens = make("button", {type: "button", className: "opens", title: name}, name);
  opens.onclick = () => {
    open(each);
    document.body.classList.remove("listed");
    at("list").ariaExpanded = "false";
    at("said").focus();
  };
  if (each.id === talk.id) opens.ariaCurrent = "true";
  const rename = () => {
    const field = make("input", {value: each.title, ariaLabel: `New name of ${name}`});
    const end = (title) => {
      field.onblur = null;
      each.title = title.trim() || each.title;
      store.put(each);
      const renamed = listed(each);
      entry.replaceWith(renamed);  // the others stay, as one of them may be what was clicked on
      return renamed;
    };
    field.onkeydown = (event) => {
      if (event.isComposing || !["Enter", "Escape"].includes(event.key)) return;
      event.preventDefault();  // or the key would go on to what has the focus now
      event.stopPropagation();
      end(event.key === "Enter" ? field.value : "").firstChild.focus();
    };
    field.onblur = () => end(field.value);
    entry.replaceChildren(field);
    field.select();
  };
  const remove = ({target}) => {
    const asks = !target.matches(".asks");
    target.classList.toggle("asks", asks);
    target.textContent = asks ? "Delete" : "✕";
    if (asks) return;
    store.remove(each);
    if (each.id === talk.id) open(newTalk());
    else listTalks();
    at("search").focus();
    announce(`${name} was deleted.`);
  };
  const removes = button("✕", "Delete", remove);
  removes.onblur = () => {
    removes.classList.remove("asks");
    removes.textContent = "✕";
  };
  entry.append(opens, button("✎", "Rename", rename), removes);
  return entry;
}

at("list").onclick = () => showList(!document.body.classList.contains("listed"));
at("search").oninput = listTalks;
at("export").onclick = () => {
  const text = JSON.stringify({edgespec_chats: 1, talks: store.sorted}, null, 1);
  const link = make("a", {href: URL.createObjectURL(new Blob([text], {type: "application/json"})), download: "edgespec-chats.json"});
  link.click();
  URL.revokeObjectURL(link.href);
};
at("import").onclick = () => choose(([file]) => importTalks(file), {accept: ".json"});

/** Takes over the conversations of a file. What has the same id is replaced where it is older. */
async function importTalks(file) {
  try {
    const found = readJson(await file.text());
    if (found?.edgespec_chats !== 1 || !Array.isArray(found.talks) || !found.talks.every(isTalk)) {
      throw new Error("It holds no chats of edgespec.");
    }
    for (const each of found.talks) if (!(store.talks.get(each.id)?.changed >= each.changed)) await store.put(each);
    const now = store.talks.get(talk.id) ?? talk;
    if (now !== talk) open(now);
    announce(`${found.talks.length} chats were imported.`);
  } catch (error) {
    complain(`${file.name}: ${error.message}`);
  }
  listTalks();
}

Store.open().then((opened) => {
  store = opened;
  if (talk.nodes.length) save(talk);  // something was asked already
  else open(remembered() ?? talk);
  return meet();  // afterwards, as what it complains of is to stay
});
