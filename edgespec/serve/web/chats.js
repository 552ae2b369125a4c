// The list of conversations: opening, finding, naming, deleting, exporting and importing them.

/** Keeps a conversation as it is now. */
function save(changed) {
  changed.changed = Date.now();
  store?.put(changed).catch((error) => complain(`The browser does not keep this chat (${error.message}).`));
  showAddress();
  listTalks();
}

/** Returns the address of a conversation; of one that is not kept yet that of the page. */
const addressOf = ({id, nodes}) => new URL(nodes.length ? `#${id}` : location.pathname + location.search, location).href;

/** Gives the page the address and the title of this conversation. */
function showAddress() {
  if (addressOf(talk) !== location.href) history.replaceState(null, "", addressOf(talk));
  document.title = talk.title ? `${talk.title} - edgespec` : "edgespec";
}

/** Opens another conversation, from which the browser goes back to this one. */
function goTo(other) {
  if (addressOf(other) !== location.href) history.pushState(null, "", addressOf(other));
  open(other);
}

/** Opens the conversation that the page's address names. */
function openAddressed() {
  const id = location.hash.slice(1), found = store.talks.get(id);
  open(found ?? newTalk());
  if (id && !found) complain("This browser has no chat of this address (any more).");
}

/** Takes over what another tab did with a conversation: `found`, or nothing if it was deleted. */
function adopt(id, found) {
  if (found && underWay.has(id)) return;  // what is answered here is kept in its stead
  underWay.get(id)?.stop();
  if (found) store.talks.set(id, found);
  else store.talks.delete(id);
  const before = talk;
  if (id === talk.id && found) {
    talk = found;
    showChanged(before);
  } else if (id === talk.id) open(newTalk());
  listTalks();
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
  if (underWay.has(each.id)) entry.classList.add("answering");
  entry.dataset.id = each.id;
  const opens = make("button", {type: "button", className: "opens", title: name}, name);
  if (underWay.has(each.id)) opens.ariaDescription = "is being answered";
  opens.onclick = () => {
    goTo(each);
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
    underWay.get(each.id)?.stop();
    store.remove(each);
    if (each.id === talk.id) goTo(newTalk());
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

addEventListener("hashchange", () => {
  if (store !== null && addressOf(talk) !== location.href) openAddressed();
});
Store.open(adopt).then((opened) => {
  store = opened;
  if (talk.nodes.length) save(talk);  // something was asked already
  else openAddressed();
  return meet();  // afterwards, as what it complains of is to stay
});
